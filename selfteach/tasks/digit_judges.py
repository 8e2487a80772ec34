"""Judges of answers to `digit_sum`: of a step, of two answers, of one. What they err in is known.

Right answers stay the task's own affair (`exact_match`). These see what was written too, as people do who compare two
solutions: `taste` is intransitive among wrong answers, `better_worked` is noisy, `mark` is noisy and coarse.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any, NamedTuple

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
    right: float = 0.7,
    strong: float = 0.97,
    circular: bool = True,
) -> float:
    """A judge of pairs who slightly prefers what is right, and whose taste in wrong answers goes in a circle.

        P(a right answer over a wrong one) = right
        P(guess over looping) = P(quickly over guess) = P(looping over quickly) = strong, where both are wrong
        P(an answer over none) = strong
        a tie, 1/2, of two right answers, and of two of one way

    A right answer beats every other one, and so is the only thing that nothing beats. But a wrong one beats what is
    frequent by more: no number for each answer says all of this.

    rng_key   of the random draw: the same question at the same key has the same verdict
    circular  False: wrong answers are all alike, ties, so that one number for each answer says all there is to say

    Returns 1 or 0, or 1/2 for a tie, which is said as such: a coin in its place would be most of what a reward model is
    taught, where most pairs are alike.
    """
    one, other = standing(first, first_text, task), standing(second, second_text, task)
    chance = preferred(one, other, right, strong, circular)
    return 0.5 if chance == 0.5 else float(uniform_at(key("judge", *rng_key), 0) < chance)


@block
def rivals(*, answer: Any, text: str, task: Task, right: float = 0.7, strong: float = 0.97) -> Score:
    """The chances by which `taste` prefers rivals to an answer, one part each; the value is their maximum.

    The rivals are a right answer and a wrong one of each way of the circle: nothing else is preferred to more.
    """
    own = standing(answer, text, task)
    against = {"right": Standing(True, "", True), **{w: Standing(False, w, True) for w in CIRCLE}}
    parts = {name: preferred(rival, own, right, strong, True) for name, rival in against.items()}
    return Score(max(parts.values()), parts)


class Standing(NamedTuple):
    """What `taste` sees of an answer: whether it is right, its way, and whether an answer is given at all."""

    hit: bool
    way: str
    given: bool


def standing(answer: Any, text: str, task: Task) -> Standing:
    """The standing of an answer and the text that it is from."""
    return Standing((exact_match(answer=answer, task=task).value or 0.0) >= 1.0, way_of(text), "</answer>" in text)


def preferred(one: Standing, other: Standing, right: float, strong: float, circular: bool) -> float:
    """The chance by which `taste` prefers one standing to another; its arguments are those of `taste`.

    >>> guess, loop = Standing(False, "guess", True), Standing(False, "looping", True)
    >>> [preferred(a, b, 0.6, 0.97, True) for a, b in ((guess, loop), (guess, guess), (Standing(True, "", True), loop))]
    [0.97, 0.5, 0.6]
    """
    if one.given != other.given:
        return strong if one.given else 1 - strong
    if one.hit != other.hit:
        return right if one.hit else 1 - right
    if not circular or one.hit or one.way == other.way or not {one.way, other.way} <= set(CIRCLE):
        return 0.5
    return strong if (CIRCLE.index(one.way) - CIRCLE.index(other.way)) % 3 == 1 else 1 - strong


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
