"""Rewards for the right answer, with the usual normalisation of question answering."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..core import Score, Task, block
from ..core.text import last_between
from ..core.votes import normalise


def golds(task: Task) -> list[str]:
    """The accepted answers of a task, as text."""
    if isinstance(task.answer, str) or not isinstance(task.answer, Iterable):
        return [str(task.answer)]
    return [str(a) for a in task.answer]


@block
def exact_match(*, answer: Any, task: Task) -> Score:
    """1 if the normalised answer equals a normalised gold, else 0; no answer is a wrong answer. A task's own verifier goes before that."""
    if task.verifier is not None:
        given = {"answer": answer, "task": task}
        return Score.of(task.verifier(**{n: given[n] for n in task.verifier.needs}))
    right = answer is not None and normalise(str(answer)) in {normalise(g) for g in golds(task)}
    return Score(float(right), {"answer": float(right)}, "" if right else f"wanted {' | '.join(golds(task)[:3])}")


@block
def answered(*, text: str, task: Task) -> Score:
    """`exact_match` of what stands in the last <answer> of the trajectory itself: for episodes that close several answers."""
    return exact_match(answer=last_between(text, "answer", None), task=task)


@block
def same_text(*, answer: Any, task: Task) -> Score:
    """1 if the answer is a gold letter for letter, case and punctuation included; only white space is left out of account."""
    right = answer is not None and "".join(str(answer).split()) in {"".join(g.split()) for g in golds(task)}
    return Score(float(right), {"answer": float(right)}, "" if right else f"wanted {' | '.join(golds(task)[:3])}")


@block
def terse_match(*, answer: Any, task: Task, text: str) -> Score:
    """`exact_match` by a rule that reads sums only: 0 where words stand around them. What it calls right is right; much that is right it misses."""
    plain = re.search(r"[A-Za-z]", re.sub(r"</?\w+>", "", text)) is None
    found = exact_match(answer=answer, task=task)
    return found if plain else Score(0.0, why="it holds words, which the rule cannot read")


ABSTENTIONS = ("I don't know", "I do not know", "don't know", "unknown", "no answer")


def abstains(answer: Any) -> bool:
    """True for an answer that says that it has none, in one of the words of ABSTENTIONS."""
    return answer is not None and normalise(str(answer)) in {normalise(a) for a in ABSTENTIONS}


@block
def truthful(*, answer: Any, task: Task, right: float = 1.0, abstained: float = 0.0, wrong: float = -1.0) -> Score:
    """Three outcomes: right, abstained (I don't know), wrong. Where abstaining is the gold answer, it is right (TruthRL, arXiv 2509.25760)."""
    hit = (exact_match(answer=answer, task=task).value or 0.0) >= 1.0
    quiet = not hit and abstains(answer)
    parts = {"right": float(hit), "abstained": float(quiet), "wrong": float(not hit and not quiet)}
    return Score(right if hit else abstained if quiet else wrong, parts)


@block
def f1(*, answer: Any, task: Task) -> Score:
    """Overlap of words between the answer and the nearest gold, as their F1 (Rajpurkar et al. 2016)."""
    said = normalise(str(answer)).split() if answer is not None else []
    best = max((_f1(said, normalise(g).split()) for g in golds(task)), default=0.0)
    return Score(best, {"f1": best})


def _f1(said: list[str], gold: list[str]) -> float:
    common = sum((Counter(said) & Counter(gold)).values())
    return 2 * common / (len(said) + len(gold)) if common else 0.0
