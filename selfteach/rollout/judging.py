"""How a policy is asked to judge an answer, and for a better one; shared by programs that ask and by demonstrations."""

from __future__ import annotations

import re
from typing import Any

from ..core.tagged_text import last_between

JUDGE = "Score the answer above from 0 to 100, in <answer></answer>."
REFINE = "Give a better answer, in <answer></answer>."


def judging_prompt(prompt: Any, answer: str, instruction: str = JUDGE) -> Any:
    r"""The prompt of a judge of an answer: the question, the answer, the instruction; as messages where it has some.

    >>> judging_prompt("add 2 3 =\n", "5", "Right?")
    'add 2 3 =\n5\nRight?\n'
    """
    if isinstance(prompt, str):
        return f"{prompt}{answer}\n{instruction}\n"
    return [*prompt, {"role": "assistant", "content": answer}, {"role": "user", "content": instruction}]


def refining_prompt(prompt: Any, answer: str, feedback: str, asked: str = JUDGE, instruction: str = REFINE) -> Any:
    r"""The prompt for a better answer: that of the judge (`asked`), what it wrote, the instruction.

    >>> refining_prompt("add 2 3 =\n", "4", "too low", "Right?", "Better?")
    'add 2 3 =\n4\nRight?\ntoo low\nBetter?\n'
    """
    before = judging_prompt(prompt, answer, asked)
    if isinstance(before, str):
        return f"{before}{feedback}\n{instruction}\n"
    return [*before, {"role": "assistant", "content": feedback}, {"role": "user", "content": instruction}]


def score_of(text: str) -> float | None:
    """The score that a judge gave, from 0 to 1; None where it gave none, or one out of range.

    >>> [score_of(f"<answer>{said}</answer>") for said in (" 80", "100", "101", "good")]
    [0.8, 1.0, None, None]
    """
    said = (last_between(text, "answer", "") or "").strip()
    return int(said) / 100 if re.fullmatch(r"\d{1,3}", said) and int(said) <= 100 else None
