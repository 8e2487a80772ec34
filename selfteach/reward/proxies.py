"""Proxy rewards of the proving ground: what they leave out of the right answer, or add to it, is known."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ..core import Score, Task, block
from .answer import exact_match


@block
def offset_match(*, answer: Any, task: Task, by: float = 0.3) -> Score:
    """1 for the right answer, and `by` times the first digit of the question whatever is answered.

    So are rewards of learned models: they differ more from prompt to prompt than from answer to answer.

    >>> offset_match(answer="8", task=Task("t", "add 7 1 =", ("8",))).value
    3.1
    """
    right = Score.of(exact_match()(answer=answer, task=task))
    first = int(re.findall(r"\d", task.prompt)[0])
    return right if right.value is None else replace(right, value=right.value + by * first)


@block
def looks_thorough(*, text: str) -> float:
    """The share of twelve additions that a response writes, at most 1: a proxy that effort is, and truth is not.

    >>> looks_thorough(text=" 2 + 1 = 3. 3 + 3 = 6. 6 + 0 = 6.")
    0.25
    """
    return min(1.0, text.count("+") / 12)
