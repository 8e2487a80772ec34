"""SearchLLM, a gated reward for answers from search (Wu et al. 2026, arXiv 2603.10473).

An answer is judged on many sides. Some are a bottom line: that it is grounded in what was found, well formed, and
right. The others are how it behaves: how much of what the user needs it covers, how little it lets itself be led off,
how short it is. A bottom line that is violated takes most of what behaviour is worth.

    R = B U,    B = (prod_i (b_i + 0.01) / 1.01)^(1/m),    U = sum_d w_d s_d / sum_d w_d          equations 1 to 3
"""

from __future__ import annotations

import math
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
from ..core.search_record import Search, citation_precision, cited_by, documents_found, facts_of, pieces_of, searches_of
from ..reward.agent_record import fault
from ..reward.answer import exact_match
from .search_r1 import search_r1

CITED = {"ways": (0.4, 0.0, 0.1, 0.1, 0.2, 0.2), "hops": (2,), "says": "cite"}
Aggregate = Literal["gate", "sum"]


@method(family="search", paper="2603.10473", catalogue=48, home=Home("factworld", 40, CITED))
def search_llm(
    groups: int = 16,
    rollouts: int = 8,
    turns: int = 5,
    aggregate: Aggregate = "gate",
    behaviour: float = 1.0,
    floor: float = 0.01,
    beta: float = 0.0,
) -> Method:
    """GRPO with a vector of scores, of which those of the bottom line gate those of behaviour.

        gate   R = B ((1 - behaviour) + behaviour U),    B = exp(mean_i log((b_i + floor) / (1 + floor)))
        sum    R = (sum_i b_i + behaviour sum_d s_d) / (m + behaviour n)

    Wu et al. 2026. The gate is a geometric mean and soft: of three bottom lines one that is violated leaves 0.21 of U,
    two leave 0.05. Bottom lines b, 0 or 1: grounded, the answer stands in what was found and every cited page was seen;
    formed, no tag is left open; correct, the answer is right (theirs has nine, by rules and language models that are
    calibrated on people, and knowledge among them; to refuse for want of evidence has no place here). Behaviour s, from
    0 to 1: coverage, the share of the facts behind the answer that were found and whose page is cited; focus, the share
    of the cited pages that such a fact is about; brevity, facts needed over searches made, at most 1 (theirs is of the
    text: an answer here is a name). Their weights w are not published; here all are 1. Their model is given its
    evidence, which here it searches for.

    aggregate  how scores become a reward; a sum of all is what the gate is compared with
    behaviour  how much of behaviour counts; 0: the bottom line alone
    """
    return search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta).replace(
        reward=(gated_scores(aggregate=aggregate, behaviour=behaviour, floor=floor),)
    )


@block
def gated_scores(
    *,
    group: RolloutGroup,
    context: RewardContext,
    aggregate: Aggregate = "gate",
    behaviour: float = 1.0,
    floor: float = 0.01,
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
            "correct": exact_match(answer=episode.answer, task=task).value or 0.0,
        }
        behaves = behaviour_of(cited, searches, task)
        parts = {**bottom, **behaves, "violated": float(min(bottom.values()) < 1)}
        parts |= citation_precision(cited, documents_found(searches), facts_of(task))
        out["reward"][t.leaf] = Score(aggregated(bottom, behaves, aggregate, behaviour, floor), parts, why)
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
    floor: float = 0.01,
) -> float:
    """One reward of two vectors of scores (see `search_llm`).

    >>> kept, broken, behaves = {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.0}, {"c": 1.0, "d": 0.5}
    >>> [round(aggregated(b, behaves, how), 4) for how in ("gate", "sum") for b in (kept, broken)]
    [0.75, 0.0746, 0.875, 0.625]
    """
    if aggregate == "sum":
        total = sum(bottom.values()) + behaviour * sum(behaves.values())
        return total / (len(bottom) + behaviour * len(behaves))
    if min(bottom.values()) + floor <= 0:
        return 0.0
    gate = math.exp(sum(math.log((b + floor) / (1.0 + floor)) for b in bottom.values()) / len(bottom))
    return gate * (1.0 - behaviour + behaviour * sum(behaves.values()) / len(behaves))


search_llm.claim = Claim(
    (
        premise("early:reward/violated", "sum", 0.2, fails_at=0.1),  # bottom lines are violated, at first
        premise("late:reward/violated", "sum", 0.03, fails_at=0.0),  # and where they can be bought back, in the end too
        mechanism("mean:reward/violated", "self", "sum", by=0.01, relation="<", fails_at=0.0),
        outcome("accuracy", "self", "sum", by=0.03, fails_at=0.98),
        outcome("late:reward/coverage", "self", "sum", by=0.05, relation=">=", fails_at=1.1),
        outcome("late:reward/coverage", "self", "bottom_line", by=0.1, fails_at=0.9),
    ),
    arms={
        "sum": ("search_llm", {"aggregate": "sum"}),
        "bottom_line": ("search_llm", {"behaviour": 0.0}),
    },
    regime="search_cited",
    settings={"eval_every": 12},
    idea=("main.reward",),
    because="behaviour is paid only where the bottom line is kept, so that neither is had at the other's cost",
)
