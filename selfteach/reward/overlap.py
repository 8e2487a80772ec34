"""Rewards by how far an answer's words are those of a gold answer."""

from __future__ import annotations

from typing import Any

from ..core import RewardContext, Score, Task, TokenPath, block
from ..core.answers import f1, gold_answers
from ..core.search_record import pieces_of
from .agent_record import count_searches, fault


@block
def word_f1(*, answer: Any, task: Task) -> Score:
    """The F1 of an answer's words against a gold answer's, of the gold answer that fits best (Rajpurkar et al. 2016).

        F1 = 2 same / (words of the answer + words of the gold answer)

    Words are normalised and counted with repeats; no answer scores 0.

    >>> word_f1(answer="the river Po", task=Task("t", "", ("Po",))).value  # of two words one is right: 2 / (2 + 1)
    0.6666666666666666
    """
    value = max((f1("" if answer is None else str(answer), gold) for gold in gold_answers(task)), default=0.0)
    return Score(value, {"f1": value})


@block
def formed_f1(*, path: TokenPath, answer: Any, task: Task, context: RewardContext) -> Score:
    """The F1 of an answer where the form is right, else 0.

    Parts: answer, whether it is right; format, searches; facts, how many the question needs.
    """
    pieces = pieces_of(path, context)
    why, fit = fault(pieces), word_f1(answer=answer, task=task).value or 0.0
    parts = {
        "answer": float(fit >= 1.0),
        "format": float(not why),
        "searches": float(count_searches(pieces)),
        "facts": float(task.tags.get("difficulty", 0)),
    }
    return Score(0.0 if why else fit, parts, why)
