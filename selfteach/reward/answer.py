"""Rewards for correct answers, with the normalisation that is usual in question answering."""

from __future__ import annotations

import re
from typing import Any

from ..core import Score, Task, block
from ..core.answers import gold_answers, normalise, same

ABSTENTIONS = (
    "I don't know",
    "I do not know",
    "don't know",
    "unknown",
    "no answer",
)  # answers that say that there is none


def states_gold(answer: Any, task: Task) -> bool:
    """Whether an answer contains a gold answer, both normalised, as whole words.

    >>> states_gold("it is Ulm", Task("t", "", ("Ulm",))), states_gold("Ulmen", Task("t", "", ("Ulm",)))
    (True, False)
    """
    said = f" {normalise('' if answer is None else str(answer))} "
    return any(f" {normalise(gold)} " in said for gold in gold_answers(task))


@block
def exact_match(*, answer: Any, task: Task) -> Score:
    """1 if the answer equals a gold answer (`core.answers.same`: numbers by value, text normalised), else 0.

    No answer is a wrong answer. A task's own verifier, where it has one, decides instead.
    """
    if task.verifier is not None:
        given = {"answer": answer, "task": task}
        return Score.of(task.verifier(**{n: given[n] for n in task.verifier.needs}))
    right = answer is not None and any(same(str(answer), gold) for gold in gold_answers(task))
    return Score(
        float(right), {"answer": float(right)}, "" if right else f"wanted {' | '.join(gold_answers(task)[:3])}"
    )


@block
def same_text(*, answer: Any, task: Task) -> Score:
    """1 if the answer equals a gold answer in every character but white space, else 0."""
    right = answer is not None and "".join(str(answer).split()) in {"".join(g.split()) for g in gold_answers(task)}
    return Score(
        float(right), {"answer": float(right)}, "" if right else f"wanted {' | '.join(gold_answers(task)[:3])}"
    )


@block
def thought_then_answer(*, text: str) -> Score:
    """1 where a response is <think>...</think> and then <answer>...</answer>, and nothing else; 0 elsewhere.

    >>> [thought_then_answer(text=t).value for t in ("<think>a</think> <answer>1</answer>", "<answer>1</answer>")]
    [1.0, 0.0]
    """
    right = re.fullmatch(r"\s*<think>.*?</think>\s*<answer>.*?</answer>\s*", text, re.DOTALL) is not None
    return Score(float(right), {"format": float(right)})
