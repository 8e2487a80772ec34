"""Judges of answers to `digit_sum`: of a step, of two answers, of one. What they err in is known.

Right answers stay the task's own affair (`exact_match`). These see what was written too, as people do who compare two
solutions: `taste` is intransitive among wrong answers, `better_worked` is noisy, `mark` is noisy and coarse.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np

from ..core import RewardContext, Score, Task, block
from ..core.contexts import TokenPath, own_tokens
from ..core.random_keys import key, uniform_at
from ..reward.answer import exact_match

MODULUS = 10
ADDITION = r"(\d) \+ (\d) [=~a-pA-P] (\d)(?!\d)"  # total, digit, result
# Of two wrong answers that of the later way is preferred, and the first to the last: a guess is brisker than a loop, a
# half of the work is more than a guess, a loop looks more thorough than that half.
CIRCLE = ("looping", "guess", "quickly")


@block
def right_addition(*, step: str) -> bool | None:
    """Whether the last addition in a step of a solution is right modulo 10; None without one.

    >>> right_addition(step=" 3 + 9 = 2."), right_addition(step=" 3 + 9 ~ 4."), right_addition(step=" slowly")
    (True, False, None)
    """
    sums = re.findall(ADDITION, step)
    return (int(sums[-1][0]) + int(sums[-1][1])) % MODULUS == int(sums[-1][2]) if sums else None


def way_of(text: str) -> str:
    """The way that a response names first: the word after <think>; "" where there is none.

    >>> way_of("<think> slowly 2 + 3 = 5.</think>")
    'slowly'
    """
    found = re.match(r"\s*<think>\s*(\w+)", text)
    return found[1] if found else ""


def worked(text: str, task: Task) -> float:
    """The share of the question's additions that a response works out rightly, from 0 to 1.

    One is right where it adds the digit that is next in the question to the result before, and comes to the sum modulo
    10. What is worked out more often than asked, or not at all, counts as none: a judge who only looked whether sums
    are right is soon shown easier ones.

    >>> task = Task("t", "add 2 3 1 =", ("6",))
    >>> worked("2 + 3 = 5. 5 + 1 ~ 7.", task), worked("2 + 3 ~ 4. 4 + 1 = 5.", task), worked("0 + 0 = 0.", task)
    (0.5, 0.5, 0.0)
    """
    first, *rest = re.findall(r"\d", task.prompt.split("add", 1)[1].split("=", 1)[0])
    sums = re.findall(ADDITION, text)
    if not 0 < len(sums) <= len(rest):
        return 0.0
    before = [first, *(result for *_, result in sums)]
    right = [
        total == known and digit == next_digit and (int(total) + int(digit)) % MODULUS == int(result)
        for known, next_digit, (total, digit, result) in zip(before, rest, sums, strict=False)
    ]
    return sum(right) / len(rest)


@block
def all_worked(*, answer: Any, path: TokenPath, context: RewardContext, task: Task) -> Score:
    """1 for the right answer of which every addition is worked out rightly, else 0: luck, one time in ten, is not paid.

    What a hint (span `hint`) worked out counts as worked out; other text from outside does not.
    """
    right = exact_match(answer=answer, task=task)
    shown = own_tokens(path) | (np.asarray(path.spans) == "hint")
    text = context.tokenizer.decode(path.ids[path.prompt :][shown[path.prompt :]])
    return right if right.value is None or worked(text, task) >= 1.0 else replace(right, value=0.0)


@block
def taste(
    *,
    first: Any,
    second: Any,
    first_text: str,
    second_text: str,
    task: Task,
    rng_key: tuple[object, ...],
    right: float = 0.6,
    strong: float = 0.97,
    circular: bool = True,
) -> bool:
    """A judge of pairs who slightly prefers what is right, and whose taste in wrong answers goes in a circle.

        P(a right answer over a wrong one) = right
        P(guess over looping) = P(quickly over guess) = P(looping over quickly) = strong, where both are wrong
        P(an answer over none) = strong
        P = 1/2 for two right answers, or two of one way

    A right answer beats every other one, and so is the only thing that nothing beats. But a wrong one beats what is
    frequent by more: no number for each answer says all of this.

    rng_key   of the random draw: the same question at the same key has the same verdict
    circular  False: wrong answers are all alike, 1/2, so that one number for each answer says all there is to say
    """
    hits = [(exact_match(answer=a, task=task).value or 0.0) >= 1.0 for a in (first, second)]
    ways = [way_of(t) for t in (first_text, second_text)]
    given = ["</answer>" in t for t in (first_text, second_text)]
    if given[0] != given[1]:
        p = strong if given[0] else 1 - strong
    elif hits[0] != hits[1]:
        p = right if hits[0] else 1 - right
    elif hits[0] or ways[0] == ways[1] or not set(ways) <= set(CIRCLE):
        p = 0.5
    else:
        above = (CIRCLE.index(ways[0]) - CIRCLE.index(ways[1])) % 3 == 1
        p = (strong if above else 1 - strong) if circular else 0.5
    return uniform_at(key("judge", *rng_key), 0) < p


@block
def better_worked(
    *, first_text: str, second_text: str, task: Task, rng_key: tuple[object, ...], noise: float = 0.1
) -> float:
    """A noisy judge of pairs that reads the work, with a margin from 0 to 1 (`worked`).

    margin = sigmoid((worked(first) - worked(second)) / noise + logistic draw)
    """
    difference = worked(first_text, task) - worked(second_text, task)
    u = min(max(uniform_at(key("judge", *rng_key), 0), 1e-12), 1 - 1e-12)
    logit = difference / noise + math.log((1 - u) / u)
    return 1 / (1 + math.exp(-max(min(logit, 50.0), -50.0)))


@block
def mark(*, text: str, task: Task, noise: float = 0.1, levels: int = 3) -> Score:
    """A noisy judge of single answers that reads the work and rounds what it finds to one of `levels` marks.

    Gumbel noise, so that before rounding one answer is above another with the chances of `better_worked`. The draw is
    keyed by the text: the same answer has the same mark.
    """
    u = min(max(uniform_at(key("mark", task.id, text), 0), 1e-12), 1 - 1e-12)
    noisy = worked(text, task) - noise * math.log(-math.log(u))
    return Score(round(min(max(noisy, 0.0), 1.0) * (levels - 1)) / (levels - 1))
