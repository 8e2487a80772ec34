"""Search-R2, an actor and a meta-refiner (He et al. 2026, arXiv 2602.03647).

What a search agent did is read again by the same model, which accepts it or names the step that went wrong first.
There the episode is cut, and the actor does the rest anew. Both roles learn from what comes out, and evidence counts
where the answer is right.

    q(y) = accept(y) pi(y) + sum_y' (1 - accept(y')) pi(y') cut(k | y') pi(y | y'_{<k})
    R    = EM (1 + density D),   D = searches that bring new evidence / searches                      equation 16
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..core import (
    Claim,
    Home,
    Method,
    ModelContext,
    Ref,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Task,
    Turn,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.search_record import Search, facts_of, searches_of
from ..core.tagged_text import last_between
from ..reward.answer import exact_match
from ..rollout.search import RETRY, append_information, search_agent, search_on, self_search
from .search_r1 import search_r1

REFINED: dict[str, Any] = {"ways": (0.0, 0.6, 0.0, 0.0, 0.2, 0.2), "hops": (2,), "irrelevant": 0.4, "says": "refine"}
Trim = Literal["refiner", "first", "random"]


@method(family="search", paper="2602.03647", catalogue=73, home=Home("factworld", 40, REFINED))
def search_r2(
    groups: int = 48,
    rollouts: int = 5,
    turns: int = 4,
    revisions: int = 1,
    trim: Trim = "refiner",
    density: float = 1.0,
    joint: bool = True,
    beta: float = 0.001,
) -> Method:
    """Search-R1 whose episodes are read, cut at the step that went wrong first, and gone on with from there.

        R = EM (1 + density D),   D = searches that bring new evidence / searches

    He et al. 2026; no code was released. Up to `revisions` times the model reads question and episode and says <judge>
    Yes</judge>, which accepts it, or <judge> No</judge><cut> k</cut>, which cuts it before its k-th step (a search, or
    the answer); a k that is no step accepts. Theirs revises where the log-probability of revising is above that of
    accepting (appendix E); here the verdict is sampled, so an episode is accepted with just that probability (in greedy
    evaluation, above one half, which is theirs). Before its verdict it may think, so that these are chances after a
    thought: the task's demonstrations go through the steps one by one. Theirs reads also what came to no answer. What
    is learned of a question are the last version of each episode and (`joint`) each verdict, all by the last version's
    reward; that a suffix which was cut off is not learned is a reading. Mean and deviation of a group count verdicts as
    members, where theirs count an episode and what the refiner said of it as one. Their judge of evidence is a language
    model; here a search brings evidence where its documents state a fact of the question's chain that none before it
    stated.

    trim: where an episode that was not accepted is cut: first, at its beginning (rejection sampling of whole episodes);
    random, at any step. revisions=0, density=0: Search-R1. The decoder `search` has no refiner, as theirs when it
    is deployed.
    """
    refined = actor_and_refiner(turns=turns, revisions=revisions, trim=trim, joint=joint)
    return (
        search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta)
        .replace(programs={"main": refined}, reward=(outcome_and_density(density=density),))
        .override(decode={"search": search_agent(turns=turns, invalid=RETRY), "self": self_search()})
    )


@block
async def actor_and_refiner(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    answerer: str = "search",
    turns: int = 4,
    revisions: int = 1,
    trim: Trim = "refiner",
    joint: bool = True,
) -> str | None:
    """An episode of a search agent, which is read and cut up to `revisions` times (see `search_r2`).

    Trajectories: the last version, learned; earlier ones, of the role `draft`, not learned; of the role `refiner` one
    for each verdict, whose prompt is all that the agent did; its notes are `cut`, the step that was named (0: none),
    and `steps`, of how many. An episode without an answer is not read.
    """
    context, steps = rollout.policy.begin(request.task.prompt), list[Ref]()
    answer, alive = await _acts(rollout, context, answerer, turns, steps)
    draw = rollout.random("where an episode is cut")
    for _ in range(revisions if alive else 0):
        refiner = rollout.policy.begin(context.ids)
        at = await _first_wrong_step(refiner, len(steps))
        refiner.note(cut=float(at), steps=float(len(steps)))
        refiner.close(learn="main" if joint else None, role="refiner")
        if not at:
            break
        context.close(learn=None, role="draft")
        at = {"refiner": at, "first": 1, "random": 1 + int(draw.integers(len(steps)))}[trim]
        context, steps = context.fork(steps[at - 1]), steps[: at - 1]
        answer, alive = await _acts(rollout, context, answerer, turns - len(steps), steps)
        if not alive:
            break
    context.close()
    return answer


async def _acts(
    rollout: RolloutContext, context: ModelContext, answerer: str, turns: int, steps: list[Ref]
) -> tuple[str | None, bool]:
    """The agent's turns from where a context stands, whose beginnings `steps` gets; its answer, and whether it ended by
    itself.
    """
    steps.append(context.at)

    async def answer_query(context: ModelContext, turn: Turn) -> None:
        await append_information(rollout, context, turn, answerer)
        steps.append(context.at)

    answer = await search_on(context, turns, RETRY, answer_query)
    return answer, answer is not None


async def _first_wrong_step(refiner: ModelContext, steps: int) -> int:
    """The step that a refiner names, from 1; 0 where it accepts, or names none that there is."""
    verdict = await refiner.sample(stop=("</judge>",))
    if (last_between(verdict.text, "judge", None) or "").lower() != "no":
        return 0
    named = last_between((await refiner.sample(stop=("</cut>",))).text, "cut", "")
    return int(named) if named.isascii() and named.isdigit() and 1 <= int(named) <= steps else 0


@block
def outcome_and_density(*, group: RolloutGroup, context: RewardContext, density: float = 1.0) -> Scores:
    """EM (1 + density D) of an episode's last version, at the end of it and of each verdict about earlier ones.

    Parts: answer, density (D), searches, revised (how often it was cut); drafted, whether its first version was right.
    Of verdicts: judged, whether a right version was accepted or a wrong one was not; of those that cut a wrong one,
    found (whether at the step that went wrong first) and first (whether to cut at the beginning would have found it).
    """
    task, out = group.request.task, Scores({"reward": {}})
    for episode in group.episodes:
        (last,) = [t for t in episode.trajectories if t.role not in ("draft", "refiner")]
        versions = [*(t for t in episode.trajectories if t.role == "draft"), last]
        right = exact_match(answer=episode.answer, task=task).value or 0.0
        found = searches_of(episode, last, context)
        share = supporting(found, task)
        value = right * (1.0 + density * share)
        wrong = [first_wrong(searches_of(episode, t, context), context.text(t.leaf), task) for t in versions]
        parts = {
            "answer": right,
            "density": share,
            "searches": float(len(found)),
            "revised": float(len(versions) - 1),
            "drafted": float(not wrong[0]),
        }
        out["reward"][last.leaf] = Score(value, parts)
        verdicts = [t for t in episode.trajectories if t.role == "refiner"]
        for t, truth in zip(verdicts, wrong, strict=False):
            at = episode.tree.number(t.leaf.node, "cut") or 0.0
            said = {"judged": float(bool(at) == bool(truth))}
            said |= {"found": float(at == truth), "first": float(truth == 1)} if at and truth else {}
            out["reward"][t.leaf] = Score(value, said)
    return out


def supporting(searches: Sequence[Search], task: Task) -> float:
    """The share of the searches that find a fact of the chain which none before them found; 0 without any search."""
    known, useful = set[str](), 0
    for s in searches:
        new = {fact for fact in facts_of(task) if fact in s.found} - known
        useful, known = useful + bool(new), known | new
    return useful / len(searches) if searches else 0.0


def first_wrong(searches: Sequence[Search], said: str, task: Task) -> int:
    """The first step, from 1, after which an episode is not on the way any more: a search that does not find the next
    fact of the chain, or the answer; 0 where the answer is right.
    """
    if (exact_match(answer=last_between(said, "answer", None), task=task).value or 0.0) >= 1.0:
        return 0
    facts = facts_of(task)
    on_the_way = [n < len(facts) and facts[n] in s.found for n, s in enumerate(searches)]
    return 1 + (on_the_way.index(False) if False in on_the_way else len(searches))


search_r2.claim = Claim(
    (
        # an actor alone leaves errors that it does not mend, and its refiner has something to find out
        premise("accuracy", "search_r1", 0.8, relation="<", fails_at=0.9),
        premise("late:reward/revised", "self", 0.1, fails_at=0.05),
        # its refiner finds where an episode went wrong more often than one that always names the first step
        mechanism("late:reward/found", "self", "late:reward/first of self", by=0.1, fails_at=0.95),
        mechanism("late:reward/answer", "self", "late:reward/drafted of self", by=0.03, fails_at=0.98),
        # with the refiner, and without it, as it is deployed
        outcome("accuracy", "self", "search_r1", by=0.03, fails_at=0.98),
        outcome("accuracy+search", "self", "accuracy of search_r1", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "whole", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "no_density", by=0.02, relation=">=", fails_at=1.0),
        outcome("late:reward/density", "self", "no_density", by=0.02, fails_at=0.99),
    ),
    arms={
        "search_r1": "search_r1",
        "whole": ("search_r2", {"trim": "first"}),
        "no_density": ("search_r2", {"density": 0.0}),
    },
    regime="search_refined",
    settings={"eval_every": 12},
    equal="tokens",
    idea=("main.program", "main.reward"),
    because="what was done well before the first wrong step is kept, and only the rest is done anew",
)
