"""CaRR, citation-aware rubric rewards, and C-GRPO (Zhang et al. 2026, arXiv 2601.06021).

A right answer earns more where what it cites supports the single-hop statements (rubrics) that lead to it, linked
entity by entity to the answer.

    R_r = supported rubrics that are connected to the answer / rubrics
    R_i = (1 - alpha) R_o,i + alpha R_o,i R_r,i / max_j R_r,j
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

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
from ..core.errors import BadValue
from ..core.search_record import citation_precision, cited_by, documents_found, facts_of, pieces_of, searches_of
from ..reward.agent_record import fault
from ..reward.answer import exact_match
from .search_r1 import search_r1

CITED = {"ways": (0.4, 0.0, 0.1, 0.1, 0.2, 0.2), "hops": (2,), "says": "cite"}


@method(family="search", paper="2601.06021", catalogue=63, home=Home("factworld", 40, CITED))
def carr(
    groups: int = 16,
    rollouts: int = 8,
    turns: int = 5,
    alpha: float = 0.3,
    gated: bool = True,
    connected: bool = True,
    beta: float = 0.0,
) -> Method:
    """GRPO whose right answers earn more the more of the statements that lead to them are supported by what they cite.

        R_i = (1 - alpha) R_o + alpha R_o R_r / max_j R_r,j        max over the group; 0 where the maximum is

    Zhang et al. 2026, sections 3 and 4. The released scripts' flags pay R_r as it is, without the maximum, and clip at
    0.2 and 0.28. R_r has the released reward's steps: the hidden entities are read from the answer; a rubric whose
    entities are all named is supported where the pages that the answer cites (20 at most there), as they were seen in
    the episode, state it; and it counts where a chain of supported rubrics connects it to the answer, found breadth
    first. Judges there are language models, here exact. An agent here cites in <cite> the pages from the question's
    entity to the answer, by name and in order, which is also where its hidden entities are read; a page's content is
    what was found that names it. Rubrics are the task's tag `rubrics`. An answer of wrong form has 0. gated=False:
    rubrics are paid in wrong answers too. connected=False: every supported rubric counts. alpha=0: the outcome alone
    (GRPO).
    """
    return search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta).replace(
        reward=(citation_aware(alpha=alpha, gated=gated, connected=connected),)
    )


@block
def citation_aware(
    *,
    group: RolloutGroup,
    context: RewardContext,
    alpha: float = 0.3,
    gated: bool = True,
    connected: bool = True,
) -> Scores:
    """The reward of C-GRPO (see `carr`).

    Parts: answer; rubrics, the share that is supported and connected; cited, how many names it cites; guessed, whether
    it is right without any such rubric; citation_precision, where it cites. Raises BadValue for a task without rubrics.
    """
    task = group.request.task
    rows = group.learned
    outcomes, shares, found = list[float](), list[float](), list[Score]()
    for episode, t in rows:
        pieces = pieces_of(context.path(t.leaf), context)
        why, cited = fault(pieces), cited_by(pieces)
        seen = documents_found(searches_of(episode, t, context))
        right = exact_match(answer=episode.answer, task=task).value or 0.0
        share = 0.0 if why else rubric_share(task, str(episode.answer), cited, seen, connected)
        outcomes.append(0.0 if why else right)
        shares.append(share)
        parts = {"answer": right, "rubrics": share, "cited": float(len(cited)), "guessed": float(right and not share)}
        parts |= citation_precision(cited, seen, facts_of(task))
        found.append(Score(None, parts, why))
    most = max(shares, default=0.0)
    out = Scores({"reward": {}})
    for (_, t), right, share, score in zip(rows, outcomes, shares, found, strict=True):
        relative = share / most if most else 0.0
        value = (1 - alpha) * right + alpha * relative * (right if gated else 1.0)
        out["reward"][t.leaf] = Score(value, score.parts, score.why)
    return out


def rubric_share(task: Task, answer: str, cited: Sequence[str], seen: Sequence[str], connected: bool = True) -> float:
    """The share of a task's rubrics that the documents of cited pages state, with the entities that an answer names.

    connected  only those that a chain of such rubrics connects to the answer

    >>> two = Task("t", "", tags={"rubrics": ("the home of Ann is <E1>.", "the mayor of <E1> is <E0>.")})
    >>> pages = ["the home of Ann is Ulm.", "the mayor of Ulm is Bob."]
    >>> [rubric_share(two, "Bob", c, pages) for c in (["Ann", "Ulm", "Bob"], ["Bob"])]
    [1.0, 0.0]
    """
    rubrics = [str(r) for r in task.tags["rubrics"]] if "rubrics" in task.tags else None
    if rubrics is None:
        raise BadValue(f"task {task.id}: has no rubrics; take a task that has, such as factworld")
    named = {"E0": answer} | {f"E{len(rubrics) - n}": name for n, name in enumerate(cited) if 0 < n < len(rubrics)}
    contents = {d for d in seen if any(re.search(rf"\b{re.escape(name)}\b", d) for name in cited)}
    supported = [_filled(r, named) in contents for r in rubrics]
    reached = _connected(rubrics, supported) if connected else {n for n, is_so in enumerate(supported) if is_so}
    return len(reached) / max(len(rubrics), 1)


def _filled(rubric: str, named: Mapping[str, str]) -> str | None:
    """A rubric with the names of its entities; None where one is not known."""
    if any(entity not in named for entity in _entities(rubric)):
        return None
    return re.sub(r"<(E\d+)>", lambda match: named[match[1]], rubric)


def _entities(rubric: str) -> list[str]:
    return re.findall(r"<(E\d+)>", rubric)


def _connected(rubrics: Sequence[str], supported: Sequence[bool]) -> set[int]:
    """The supported rubrics that can be reached from the answer, E0, over entities that such rubrics share."""
    reached, entities, grown = set[int](), {"E0"}, True
    while grown:
        new = {n for n, r in enumerate(rubrics) if supported[n] and entities.intersection(_entities(r))}
        grown, reached = new != reached, new
        entities |= {entity for n in new for entity in _entities(rubrics[n])}
    return reached


carr.claim = Claim(
    (
        premise("late:reward/guessed", "outcome", 0.1, fails_at=0.0),  # right answers go without what supports them
        mechanism("late:reward/rubrics", "self", "outcome", by=0.2, fails_at=0.8),
        outcome("accuracy", "self", "outcome", by=0.03, relation=">=", fails_at=1.0),
        outcome("late:reward/guessed", "self", "outcome", by=0.05, relation="<", fails_at=0.0),
        outcome("accuracy", "self", "ungated", by=0.02, fails_at=0.99),
    ),
    arms={
        "outcome": ("carr", {"alpha": 0.0}),
        "ungated": ("carr", {"gated": False}),
    },
    regime="search_cited",
    settings={"eval_every": 12},
    idea=("main.reward",),
    because="among right answers those are worth more whose evidence is named, and a wrong one is never worth anything",
)
