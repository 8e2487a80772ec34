"""Rewards for the right answer, with the usual normalisation of question answering."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..core import Score, Task, block


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and doubled spaces (Rajpurkar et al. 2016).

    >>> normalise("The  U.S. Dollar!")
    'us dollar'
    """
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def golds(task: Task) -> list[str]:
    """The accepted answers of a task, as text."""
    if isinstance(task.answer, str) or not isinstance(task.answer, Iterable):
        return [str(task.answer)]
    return [str(a) for a in task.answer]


@block
def exact_match(*, answer: Any, task: Task) -> Score:
    """1 if the normalised answer equals a normalised gold, else 0; no answer is a wrong answer."""
    right = answer is not None and normalise(str(answer)) in {normalise(g) for g in golds(task)}
    return Score(float(right), {"answer": float(right)}, "" if right else f"wanted {' | '.join(golds(task)[:3])}")


@block
def f1(*, answer: Any, task: Task) -> Score:
    """Overlap of words between the answer and the nearest gold, as their F1 (Rajpurkar et al. 2016)."""
    said = normalise(str(answer)).split() if answer is not None else []
    best = max((_f1(said, normalise(g).split()) for g in golds(task)), default=0.0)
    return Score(best, {"f1": best})


def _f1(said: list[str], gold: list[str]) -> float:
    common = sum((Counter(said) & Counter(gold)).values())
    return 2 * common / (len(said) + len(gold)) if common else 0.0
