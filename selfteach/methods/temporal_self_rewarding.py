"""Temporal Self-Rewarding (Wang et al. 2025, arXiv 2508.06026): DPO on pairs from the past and the future of a policy.

A policy that judges its own answers soon samples pairs that hardly differ. So rejected answers are of the first model,
and chosen ones of a model that is one DPO run ahead and then thrown away.

    past    chosen = best of M_i, rejected = worst of M_0 where that is worse than the worst of M_i   -> M_f by DPO
    future  chosen = best of M_f where that is better; rejected by the same rule                      -> M_i+1 by DPO
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import NamedTuple

from ..core import (
    Claim,
    Method,
    ModelContext,
    ModelRole,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Stage,
    Term,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.tagged_text import last_between
from ..credit.composers import of_another_model, preference_pairs
from ..curriculum.select import uniform
from ..objective import preference
from ..rollout.judging import JUDGE, judging_prompt, score_of
from ..rollout.single import single

FIRST, PRESENT, FUTURE = "first", "present", "future"  # model roles: M_0, M_i, M_f


@method(family="selfreward", paper="2508.06026", catalogue=136)
def temporal_self_rewarding(
    groups: int = 16,
    samples: int = 7,
    rounds: int = 2,
    round_steps: int = 15,
    past: bool = True,
    future: bool = True,
    beta: float = 0.1,
    instruction: str = JUDGE,
) -> Method:
    """Iterated DPO on answers that the policy judges itself, rejected ones of its past, chosen ones of its future.

        D_1  chosen: the best of `samples` answers of M_i;  rejected: the worst of as many of M_0 where it is worse than
             the worst of M_i, else that
        D_2  chosen: the best of `samples` answers of M_f = DPO(M_i, D_1) where it is better than that of M_i
        M_i+1 = DPO(M_i, D_2),   reference M_i;   only pairs whose scores differ

    Wang et al. 2025: 7 samples, beta 0.1, 2 rounds where Self-Rewarding (Yuan et al. 2024) has 4; M_i judges all.
    past=False, future=False is Self-Rewarding; a round without the future is one DPO run, else two, each of
    `round_steps` steps with a new optimiser, on new questions, all of whose answers are drawn anew (there both runs are
    on the same questions, and the second keeps the rejected answers of the first). Known from a description of the
    paper, not from code. The similarity of hidden states is not logged. Logged: reward/gap, the chosen score less the
    rejected; reward/paired; reward/from_past, reward/from_future; and the truth of both, which no pair reads:
    reward/chosen_right and reward/rejected_right, by the task's judge `adequacy` where it has one.
    """
    learn = Update(("policy",), (Term(preference.dpo(beta=beta).reading(ref_logp="present_logp")),))
    first_run = Stage(
        name="past",
        select=uniform(),
        programs={"main": judged_pair(samples=samples, past=past, future=False, instruction=instruction)},
        reward=(pair_scores(),),
        credit=(of_another_model(compose=preference_pairs(choose="all")),),
        updates=(learn,),
        groups=groups,
        rollouts=1,
        until=round_steps,
        enter={PRESENT: "policy"},
        reset=("policy",),
    )
    second_run = replace(
        first_run,
        name="future",
        programs={"main": judged_pair(samples=samples, past=past, future=True, instruction=instruction)},
        enter={FUTURE: "policy", "policy": PRESENT},
    )
    names = (PRESENT, *((FIRST,) if past else ()), *((FUTURE,) if future else ()))
    return Method(
        stages=(first_run, second_run) if future else (first_run,), repeat=rounds, decode={"main": single()}
    ).override(weights={n: WeightSpec("start") for n in names}, models={n: ModelRole((n,)) for n in names})


class Judged(NamedTuple):
    """An answer, the context that it ends, and the score that the judge gave it, from 0 to 1; NaN: none can be read."""

    context: ModelContext
    answer: str
    score: float
    of: str


@block
async def judged_pair(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    samples: int = 7,
    past: bool = True,
    future: bool = False,
    instruction: str = JUDGE,
    stop: tuple[str, ...] = ("</answer>",),
) -> str | None:
    """Answers of the present model, of the first one and of the one ahead; the pair that they make is learned.

    All are judged by the present model, greedily; an answer without tags is 0 unjudged, and one whose score cannot be
    read is in no pair, as it is not known to be bad. The chosen answer is closed first. Returns it, or None where no
    pair is made, of which nothing is logged.
    """

    async def answers(role: str) -> list[Judged]:
        trunk = rollout.model_role(role).begin(request.task.prompt)
        contexts = [trunk.fork() for _ in range(samples)]
        turns = await asyncio.gather(*(c.sample(stop=stop) for c in contexts))
        texts = [last_between(turn.text, "answer", None) for turn in turns]
        scores = await asyncio.gather(*(judged(text) for text in texts))
        return [Judged(c, t or "", s, role) for c, t, s in zip(contexts, texts, scores, strict=True)]

    async def judged(answer: str | None) -> float:
        if answer is None:
            return 0.0
        context = rollout.model_role(PRESENT).begin(judging_prompt(request.task.prompt, answer, instruction))
        turn = await context.sample(stop=stop, temperature=0.0)
        context.close(learn=None, role="judge")
        score = score_of(turn.text)
        return math.nan if score is None else score

    roles = [PRESENT, *([FIRST] if past else []), *([FUTURE] if future else [])]
    found = dict(zip(roles, await asyncio.gather(*(answers(role) for role in roles)), strict=True))
    pair, whole = dict[str, Judged](), dict[str, float]()
    if (made := pair_of(found[PRESENT], found.get(FIRST, []), found.get(FUTURE, []))) is not None:
        chosen, rejected = made
        whole = {"gap": chosen.score - rejected.score, "paired": float(chosen.score > rejected.score)}
        whole |= {"from_past": float(rejected.of == FIRST), "from_future": float(chosen.of == FUTURE)}
        pair = {"chosen": chosen, **({} if rejected.context is chosen.context else {"rejected": rejected})}
    for role, one in pair.items():
        told = {"score": one.score, **(whole if role == "chosen" else {})}
        if (adequacy := request.task.judges.get("adequacy")) is not None:
            told[f"{role}_right"] = float(adequacy(answer=one.answer, task=request.task))
        one.context.note(**told)
        one.context.close(role=role)
    for context in (one.context for every in found.values() for one in every):
        if not any(context is one.context for one in pair.values()):
            context.close(learn=None, role="candidate")
    return pair["chosen"].answer if pair else None


def pair_of(present: list[Judged], first: list[Judged], future: list[Judged]) -> tuple[Judged, Judged] | None:
    """The chosen and the rejected answer; of the present's equals the first and the last, before the others'.

    Answers whose score is NaN are left out; None where the present model has no other.
    """
    present, first, future = ([j for j in each if not math.isnan(j.score)] for each in (present, first, future))
    if not present:
        return None
    chosen, rejected = max(present, key=lambda j: j.score), min(reversed(present), key=lambda j: j.score)
    if first and (worst := min(first, key=lambda j: j.score)).score < rejected.score:
        rejected = worst
    if future and (best := max(future, key=lambda j: j.score)).score > chosen.score:
        chosen = best
    return chosen, rejected


@block
def pair_scores(
    *,
    group: RolloutGroup,
    parts: tuple[str, ...] = ("gap", "paired", "from_past", "from_future", "chosen_right", "rejected_right"),
) -> Scores:
    """The judge's score of a chosen and of a rejected answer, with what was noted of the pair as parts."""
    out: Scores = {"reward": {}}
    for tree, leaf in [
        (e.tree, t.leaf) for e in group.episodes for t in e.trajectories if t.role in ("chosen", "rejected")
    ]:
        known = {p: v for p in parts if (v := tree.number(leaf.node, p)) is not None}
        out["reward"][leaf] = Score(tree.number(leaf.node, "score"), known)
    return out


OWN = {"samples": 4, "round_steps": 40}
temporal_self_rewarding.claim = Claim(
    (
        # by itself the policy soon samples answers that it cannot tell apart
        premise("late:reward/gap", "plain", "early:reward/gap of plain", relation="<", by=0.15, fails_at=0.1),
        premise("late:reward/chosen_right", "self", "late:reward/rejected_right of self", by=0.1, fails_at=1.0),
        mechanism("late:reward/gap", "self", "plain", by=0.1, fails_at=1.0),
        # rejected answers stay those of the past, and as bad
        mechanism("late:reward/from_past", "self", 0.05, by=0.0, fails_at=0.0),
        mechanism("late:reward/rejected_right", "self", "plain", relation="<", by=0.1, fails_at=0.1),
        outcome("accuracy", "self", "start", by=0.1, fails_at=0.95),
        outcome("accuracy", "self", "plain", by=0.05, fails_at=0.96),
        outcome("accuracy", "past", "plain", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "past", by=0.03, relation=">=", fails_at=1.0),
    ),
    arms={
        "plain": ("temporal_self_rewarding", {**OWN, "past": False, "future": False, "rounds": 4}),
        "past": ("temporal_self_rewarding", {**OWN, "future": False, "rounds": 4}),
    },
    args=OWN,
    settings={"lr": 2e-5, "steps": 160},  # at 1e-4 DPO alone unlearns to translate, in every arm
    regime="judged_by_itself",
    idea=("past.*", "future.*", "weights.*", "models.*", "repeat"),
    first_seed=400,
    corrected=(
        "on seeds 200 to 207 the policy was evaluated by the program of its training, the better of several answers by "
        "its own verdict, and not by its answer; on 300 to 307 a DPO run had 15 steps, in which the policy hardly left "
        "its past: not tested here"
    ),
    because="answers of the first model stay worse than those of the present one, so that pairs go on to teach",
)
