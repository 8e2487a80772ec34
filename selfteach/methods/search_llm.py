"""SearchLLM, a gated reward for answers from search (Wu et al. 2026, arXiv 2603.10473).

An answer is judged on many sides. Some are a bottom line: that it is grounded in what was found, well formed, and
right. The others are how it behaves: how much of what the user needs it covers, how little it lets itself be led off,
how short it is. What is gained there never buys back what was violated here.

    R = 1 + behaviour mean_d s_d        where every bottom line is kept
    R = -penalty violated / bottom lines        else
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ..core import (
    Claim,
    Home,
    Method,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    Task,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.answers import normalise
from ..reward.agent_record import (
    Search,
    citation_precision,
    cited_by,
    documents_found,
    facts_of,
    fault,
    pieces_of,
    searches_of,
)
from ..reward.answer import exact_match
from .search_r1 import search_r1

CITED = {"ways": (0.4, 0.0, 0.1, 0.1, 0.2, 0.2), "hops": (2,), "says": "cite"}
Aggregate = Literal["gate", "sum", "least"]


@method(family="search", paper="2603.10473", catalogue=48, home=Home("factworld", 40, CITED))
def search_llm(
    groups: int = 16,
    rollouts: int = 8,
    turns: int = 5,
    aggregate: Aggregate = "gate",
    behaviour: float = 1.0,
    penalty: float = 0.0,
    beta: float = 0.0,
) -> Method:
    """GRPO with a vector of scores, of which those of the bottom line gate those of behaviour.

        gate   R = 1 + behaviour mean_d s_d where every b = 1, else -penalty (share of the b that are 0)
        sum    R = mean b + behaviour mean_d s_d
        least  R = the least of all

    Wu et al. 2026, from their abstract: thresholds and weights of the gate are not given there, and are chosen. Bottom
    lines b, 0 or 1: grounded, the answer stands in what was found and every cited page was seen; formed, no tag is left
    open; quality, the answer is right. Behaviour s, from 0 to 1: coverage, the share of the facts behind the answer
    that were found and whose page is cited; focus, the share of the cited pages that such a fact is about; brevity,
    facts needed over searches made, at most 1. Their judges are rules and language models calibrated on people; safety
    has nothing to judge here. aggregate: how scores become a reward; `sum` is what the gate is an answer to.
    """
    return search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta).replace(
        reward=(gated_scores(aggregate=aggregate, behaviour=behaviour, penalty=penalty),)
    )


@block
def gated_scores(
    *,
    group: RolloutGroup,
    context: RewardContext,
    aggregate: Aggregate = "gate",
    behaviour: float = 1.0,
    penalty: float = 0.0,
) -> Scores:
    """The reward of a vector of scores (see `search_llm`). Parts: all of them; violated, whether any bottom line is;
    citation_precision, where it cites.
    """
    task, out = group.request.task, Scores({"reward": {}})
    for episode, t in group.learned:
        pieces, searches = pieces_of(context.path(t.leaf), context), searches_of(episode, t, context)
        cited, why = cited_by(pieces), fault(pieces)
        bottom = {
            "grounded": float(is_grounded(episode.answer, cited, searches)),
            "formed": float(not why),
            "quality": exact_match(answer=episode.answer, task=task).value or 0.0,
        }
        behaves = behaviour_of(cited, searches, task)
        parts = {**bottom, **behaves, "violated": float(min(bottom.values()) < 1)}
        parts |= citation_precision(cited, documents_found(searches), facts_of(task))
        out["reward"][t.leaf] = Score(aggregated(bottom, behaves, aggregate, behaviour, penalty), parts, why)
    return out


def is_grounded(answer: str | None, cited: Sequence[str], searches: Sequence[Search]) -> bool:
    """Whether an answer stands in what was found, and so does the name of each cited page, as whole words."""
    seen = f" {normalise(' '.join(s.found for s in searches))} "
    names = [answer or "", *cited]
    return all(normalise(name) and f" {normalise(name)} " in seen for name in names)


def behaviour_of(cited: Sequence[str], searches: Sequence[Search], task: Task) -> dict[str, float]:
    """coverage, focus and brevity of an episode, each from 0 to 1 (see `search_llm`); 0 where there is nothing to be
    judged.
    """
    facts, found = facts_of(task), set(documents_found(searches))
    pages = {name: {f for f in facts if name in f.rstrip(".").split()} for name in cited}
    covered = {f for about in pages.values() for f in about if f in found}
    return {
        "coverage": len(covered) / max(len(facts), 1),
        "focus": sum(bool(about) for about in pages.values()) / max(len(pages), 1),
        "brevity": min(1.0, len(facts) / len(searches)) if searches else 0.0,
    }


def aggregated(
    bottom: Mapping[str, float],
    behaves: Mapping[str, float],
    aggregate: Aggregate = "gate",
    behaviour: float = 1.0,
    penalty: float = 0.0,
) -> float:
    """One reward of two vectors of scores (see `search_llm`).

    >>> kept, broken, behaves = {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.0}, {"c": 1.0, "d": 0.5}
    >>> [aggregated(b, behaves, how, 1.0, 0.5) for how in ("gate", "sum") for b in (kept, broken)]
    [1.75, -0.25, 1.75, 1.25]
    """
    if aggregate == "least":
        return min([*bottom.values(), *behaves.values()])
    share = sum(bottom.values()) / len(bottom)
    if aggregate == "gate" and min(bottom.values()) < 1:
        return -penalty * (1.0 - share)
    return share + behaviour * sum(behaves.values()) / len(behaves)


search_llm.claim = Claim(
    (
        premise("early:reward/violated", "sum", 0.2, fails_at=0.1),  # bottom lines are violated, at first
        premise("late:reward/violated", "sum", 0.03, fails_at=0.0),  # and where they can be bought back, in the end too
        mechanism("late:reward/violated", "self", "sum", by=0.01, relation="<", fails_at=0.0),
        outcome("accuracy", "self", "sum", by=0.03, fails_at=0.98),
        outcome("late:reward/coverage", "self", "sum", by=0.05, relation=">=", fails_at=1.1),
        outcome("accuracy", "self", "least", by=0.03, relation=">=", fails_at=1.0),
        outcome("late:reward/coverage", "self", "bottom_line", by=0.1, fails_at=0.9),
    ),
    arms={
        "sum": ("search_llm", {"aggregate": "sum"}),
        "least": ("search_llm", {"aggregate": "least"}),
        "bottom_line": ("search_llm", {"behaviour": 0.0}),
    },
    regime="search_cited",
    settings={"eval_every": 12},
    idea=("main.reward",),
    because="behaviour is paid only where the bottom line is kept, so that neither is had at the other's cost",
)
