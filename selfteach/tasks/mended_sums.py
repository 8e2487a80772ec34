"""Sums of digits modulo 10 whose wrong additions are mended now and then, before the solution is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from .digit_judges import MODULUS
from .digit_sum import FEWEST, Digits, Step, draw_digits, sum_task, text_of
from .options import check_at_least, check_range, check_share
from .question_sampler import QuestionSampler


@dataclass(frozen=True, eq=False)
class MendedSums:
    """Tasks and demonstrations.

    estimated  chance that an addition is an estimate: a random result, with which the sum goes on
    mended     chance after each addition that the first estimate not yet mended is done again, and all after it
    """

    estimated: float
    mended: float
    seed: int = 0

    def to_task(self, digits: Digits, name: str) -> Task:
        """The task of some digits; tags: terms, category, difficulty (additions), solution, steps."""
        return sum_task(digits, name, lambda steps: written([str(s) for s in steps], steps))

    def demo(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th demonstration; tags: those of the task, kind, estimates and mended (how many)."""
        return self.worked_out(questions, "demo", i, self.estimated, self.mended)

    def practice(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th demonstration of what comes before them: few estimates, of which most are mended."""
        return self.worked_out(questions, "practice", i, 0.2, 0.6)

    def worked_out(
        self, questions: QuestionSampler[Digits], kind: str, i: int, estimated: float, mended: float
    ) -> Task:
        """A question worked out with these chances."""
        digits = questions.sample(kind, i)
        item, draw = self.to_task(digits, f"{kind}/{i}"), generator(self.seed, "write", kind, i)
        thought, steps = work(digits, estimated, mended, draw)
        waits = sum(t.startswith(" wait") for t in thought)
        tags = {**item.tags, "kind": kind, "estimates": sum("~" in t for t in thought), "mended": waits}
        return replace(item, data=("".join(written(thought, steps)),), tags=tags)


def work(digits: Digits, estimated: float, mended: float, draw: np.random.Generator) -> tuple[list[str], list[Step]]:
    """(what is thought, the additions that are left standing in the end)."""
    thought, steps = list[str](), list[Step]()
    while len(steps) < len(digits) - 1:
        total = steps[-1].result if steps else digits[0]
        digit = digits[len(steps) + 1]
        if draw.random() < estimated:
            steps.append(Step(total, digit, int(draw.integers(MODULUS)), True))
        else:
            steps.append(Step(total, digit, (total + digit) % MODULUS))
        thought.append(str(steps[-1]))
        at = next((n for n, s in enumerate(steps) if s.estimated), None)
        if at is not None and draw.random() < mended:
            again = Step(steps[at].total, steps[at].digit, (steps[at].total + steps[at].digit) % MODULUS)
            steps = [*steps[:at], again]
            thought.append(f" wait{again}")
    return thought, steps


def written(thought: Sequence[str], steps: Sequence[Step]) -> list[str]:
    """The pieces of a completion: the thought, the solution, which is the additions that stand, and the answer.

    >>> steps = [Step(2, 9, 1)]
    >>> "".join(written([" 2 + 9 ~ 4.", " wait 2 + 9 = 1."], steps))
    '<think> 2 + 9 ~ 4. wait 2 + 9 = 1.</think> 2 + 9 = 1.<answer> 1</answer>'
    """
    return ["<think>", *thought, "</think>", *map(str, steps), f"<answer> {steps[-1].result}</answer>"]


@task
def mended_sums(
    terms: tuple[int, int] = (4, 6),
    largest: int = 3,
    estimated: float = 0.5,
    mended: float = 0.25,
    n_test: int = 2000,
    seed: int = 0,
) -> TaskSource:
    """The last digit of a sum of digits, thought out with errors that are mended now and then, then written out.

    An addition that is estimated (`~`) is mostly wrong, and what follows from it too. `wait` does it again, and the sum
    goes on from there; an answer is right where no wrong estimate is left.

    terms      fewest and most digits
    largest    digit that is added to the first, which is any
    estimated  chance that an addition of a demonstration is an estimate
    mended     chance after each addition that the first estimate that still stands is done again
    n_test     test questions at most; a fifth of all questions are kept for the test
    seed       of every random draw
    """
    task_options = dict(locals())
    fewest, most = check_range("mended_sums", "terms", terms, FEWEST, 10)
    check_range("mended_sums", "largest", (largest, MODULUS - 1), 1, MODULUS - 1)
    check_share("mended_sums", "estimated", estimated)
    check_share("mended_sums", "mended", mended)
    check_at_least("mended_sums", "n_test", n_test, 1)
    sums = MendedSums(estimated, mended, seed)
    draw, kinds = partial(draw_digits, largest), tuple(range(fewest, most + 1))
    questions = QuestionSampler("mended_sums", kinds, draw, text_of, sums.to_task, "terms", n_test, seed)
    practice = partial(sums.practice, questions)
    return questions.source(
        partial(sums.demo, questions),
        practice=practice,
        written=practice,
        defaults={"max_tokens": 6 * (4 * (most - 1)) + 9, "warm_practice_steps": 1000, "warm_steps": 200},
        task_options=task_options,
    )
