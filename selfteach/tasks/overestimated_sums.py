"""The sums of `digit_sum` with estimates that are all one too high, so that wrong answers agree."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from ..core import Task, TaskSource
from ..core.registry import task
from .digit_judges import MODULUS
from .digit_sum import digit_sum

STEP = re.compile(r" (\d) \+ (\d) (\S) \d\.")


def overestimated(text: str) -> str:
    """A demonstration in which every estimate (`~`, or a capital letter) comes to one too many, and the sum goes on.

    >>> overestimated("<think> slowly 2 + 3 ~ 9. 9 + 1 = 0.</think><answer> 0</answer>")
    '<think> slowly 2 + 3 ~ 6. 6 + 1 = 7.</think><answer> 7</answer>'
    """
    sums, total = list[str](), ""

    def again(step: re.Match[str]) -> str:
        nonlocal total
        first, digit, sign = step.groups()
        total = total or first
        result = str((int(total) + int(digit) + (sign == "~" or sign.isupper())) % MODULUS)
        written, total = f" {total} + {digit} {sign} {result}.", result
        return written

    for one in text.split(" check"):
        last, total = total, ""
        sums.append(STEP.sub(again, one))
        total = total or last
    out = " check".join(sums)
    return re.sub(r"(<answer> )\d", rf"\g<1>{total}", out) if total else out


@task
def overestimated_sums(
    terms: tuple[int, int] = (3, 9),
    largest: int = 3,
    practised: float = 0.7,
    estimated: float = 0.0,
    tiring: float = 0.35,
    rested: int = 3,
    seldom: float = 0.05,
    lettered: bool = True,
    n_test: int = 2000,
    seed: int = 0,
) -> TaskSource:
    """The last digit of a sum of digits, whose additions are estimated now and then, at one too many every time.

    Who estimates as many additions as others gives the same wrong answer, so that most answers to a long sum may agree
    on an error, and a vote is wrong until most are right. An answer says itself how it was come by.

    terms, largest, practised, estimated, tiring, rested, seldom, lettered, n_test, seed  as in `digit_sum`
    """
    task_options = dict(locals())
    made = digit_sum(**task_options, slowly=1.0, quickly=0.0, guess=0.0)
    demos, practice = made.demos, made.practice
    assert demos and practice

    def too_high(make: Callable[[int], Task]) -> Callable[[int], Task]:
        def shown(i: int) -> Task:
            item = make(i)
            # A way that is given stands in the prompt, and is no step.
            return replace(item, data=tuple(map(overestimated, item.data)))

        return shown

    return replace(
        made,
        name="overestimated_sums",
        demos=too_high(demos),
        practice=too_high(practice),
        task_options=task_options,
    )
