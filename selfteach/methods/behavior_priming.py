"""Behavior Priming (Jin et al. 2025, arXiv 2510.06534).

Before RL an agent is shown trajectories that verify, judge sources, change their queries and recover from errors. What
they show is what counts: trajectories that behave so and end in a wrong answer prime as well as right ones, and
trajectories that were chosen for being right alone prime worse.

    prime   loss = mean over tokens that were said of -logp    of trajectories of one style
    then    GRPO, R = EM
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ..core import (
    Claim,
    Home,
    Method,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.answers import normalise
from ..core.search_record import Search, pieces_of, searches_of
from ..reward.agent_record import Verdict, verdicts_of
from ..reward.answer import exact_match
from .base import imitation_stage
from .search_r1 import search_r1

JUDGED = {"ways": (0.1, 0.3, 0.2, 0.1, 0.1, 0.2), "irrelevant": 0.4, "says": "judge", "looked_up": 1.0}
BEHAVIOURS = ("verification", "authority", "adaptive", "recovery")


@method(
    family="guidance", paper="2510.06534", catalogue=45, home=Home("factworld", 40, {**JUDGED, "unheld": ("home",)})
)
def behavior_priming(
    groups: int = 16,
    rollouts: int = 8,
    turns: int = 4,
    style: Literal["behaving", "misled", "right", "random"] = "behaving",
    prime_steps: int = 10,
    batch: int = 64,
    pool: int = 512,
    process: float = 0.0,
    beta: float = 0.0,
) -> Method:
    """Supervised training on trajectories of one style, then Search-R1.

        style  behaving  all four behaviours, and right       misled   all four, and wrong
               right     right, however they went             random   as they come

    Jin et al. 2025, sections 4 and 5. Sets are of one size, `pool`, and so is what is learned of them, `prime_steps`
    batches. Here they are the task's experts (tasks/agent_demos.py, STYLES), drawn until they are of the style; theirs
    are of a language model, labelled by another. Trajectories that are misled differ from behaving ones in their answer
    alone, which is another entity than the result that was accepted. The paper's main set is not filtered by
    correctness (half of it is right); `behaving` is its set of right ones, `misled` that of wrong ones, `right` its
    outcome-driven selection. What the engine said is not learned. The four behaviours are read by rule from the agent's
    verdicts: verification, a verdict on every result; authority, some result is rejected; adaptive, what follows a
    rejected result is asked in other words, some of which may be left out or added; recovery, after a rejected result
    one is accepted.
    prime_steps=0: RL alone. process: in place of priming, or beside it, a reward for the share of the behaviours that
    an episode shows, which the paper finds to be less; its 0.1 for each of the four is process=0.4. The paper's SFT is
    three epochs with each step of a trajectory a sample of its own, its RL sums the mean over a step's tokens over
    steps and has a KL of 0.001; here they are a little more than one epoch, the mean over all tokens, and no KL.
    """
    main = search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta).replace(
        reward=(outcome_and_behaviours(process=process),)
    )
    if not prime_steps:
        return main
    prime = imitation_stage("prime", prime_steps, pool, batch, style=style, slips=True)
    return main.override(stages=(prime, replace(main.stage, name="main")))


@block
def outcome_and_behaviours(*, group: RolloutGroup, context: RewardContext, process: float = 0.0) -> Scores:
    """EM + process (share of the four behaviours).

    Parts: answer, searches, each behaviour, and behaviours, their share.
    """
    task, out = group.request.task, Scores({"reward": {}})
    for episode, t in group.learned:
        searches = searches_of(episode, t, context)
        verdicts = verdicts_of(pieces_of(context.path(t.leaf), context), "judge", "Yes", "No")
        right = exact_match(answer=episode.answer, task=task).value or 0.0
        shown = behaviours(searches, verdicts)
        share = sum(shown.values()) / len(shown)
        parts = {"answer": right, "searches": float(len(searches)), **shown, "behaviours": share}
        out["reward"][t.leaf] = Score(right + process * share, parts)
    return out


def behaviours(searches: list[Search], verdicts: list[Verdict | None]) -> dict[str, float]:
    """Which of the four behaviours an episode shows, 0 or 1 each (see `behavior_priming`).

    Args: verdicts: of each search, in order; None where there is none.
    """
    rejected = [n for n, v in enumerate(verdicts) if v is not None and not v.accepted]
    asked = [set(normalise(s.query).split()) - {"of"} for s in searches]
    words = [normalise(s.query) for s in searches]
    again = [n for n in rejected if n + 1 < len(searches)]
    shown = (
        bool(verdicts) and None not in verdicts,
        bool(rejected),
        any(words[n + 1] not in words[: n + 1] and is_reworded(asked[n], asked[n + 1]) for n in again),
        any(v is not None and v.accepted for v in verdicts[rejected[0] + 1 :]) if rejected else False,
    )
    return dict(zip(BEHAVIOURS, map(float, shown), strict=True))


def is_reworded(before: set[str], after: set[str]) -> bool:
    """Whether a query has the words of the one before, some of which may be left out, or others added.

    >>> is_reworded({"town", "whose", "mayor", "is", "ann"}, {"ann", "mayor"})
    True
    """
    return bool(before and after) and (before <= after or after <= before)


behavior_priming.claim = Claim(
    (
        premise("accuracy", "direct", 0.9, relation="<", fails_at=0.95),  # RL alone leaves something
        mechanism("mean:reward/recovery", "self", "right", by=0.05, fails_at=0.95),
        mechanism("mean:reward/recovery", "misled", "right", by=0.05, fails_at=0.95),
        outcome("accuracy", "self", "right", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "direct", by=0.03, fails_at=0.98),
        outcome("accuracy", "misled", "self", by=0.04, relation=">=", fails_at=1.0),
        outcome("accuracy", "self", "paid", by=0.03, fails_at=0.98),
    ),
    arms={
        "direct": ("behavior_priming", {"prime_steps": 0}, {"steps": 60}),
        "right": ("behavior_priming", {"style": "right"}),
        "misled": ("behavior_priming", {"style": "misled"}),
        "paid": ("behavior_priming", {"prime_steps": 0, "process": 0.4}, {"steps": 60}),
    },
    regime="search_noisy",
    settings={"steps": 70, "eval_every": 12},  # ten of priming, and then the same RL
    idea=("prime", "prime.*", "main.reward"),
    differs={"settings.steps": "every arm has 60 steps of RL; what is primed has ten of priming before"},
    first_seed=300,
    corrected=(
        "on seeds 200 to 207 misled trajectories had rejected all that they found and answered from it all the same, "
        "behaving ones mostly had nothing to reject, and in place of those that are right however they went stood an "
        "agent that rejects nothing: does not hold here"
    ),
    because="RL makes more of what a policy does now and then, and what it is shown to do counts, not how that ended",
)
