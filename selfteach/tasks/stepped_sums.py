"""Sums of digits modulo 10 worked out in steps of one size or another: fewer steps, of which each is harder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..core.errors import BadValue
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from .digit_judges import MODULUS
from .digit_sum import FEWEST, Digits, draw_digits, sum_task, text_of
from .options import check_at_least, check_range, check_share
from .question_sampler import QuestionSampler, pick


def worked_in_steps(digits: Sequence[int], size: int, misread: float, draw: np.random.Generator) -> list[str]:
    """The steps of a sum that add `size` digits each; of each one digit is misread with a chance.

    >>> worked_in_steps((2, 9, 4, 7), 2, 0.0, np.random.default_rng(0))
    [' 2 + 9 + 4 = 5.', ' 5 + 7 = 2.']
    """
    steps, total = list[str](), digits[0]
    for at in range(1, len(digits), size):
        read = list(digits[at : at + size])
        if misread and draw.random() < misread:
            read[int(draw.integers(len(read)))] = int(draw.integers(MODULUS))
        result = (total + sum(read)) % MODULUS
        steps.append(f" {' + '.join(map(str, (total, *read)))} = {result}.")
        total = result
    return steps


def completion(size: int, steps: Sequence[str]) -> list[str]:
    """The pieces of a completion: its size of steps, the steps, the answer.

    >>> "".join(completion(2, [" 2 + 9 + 4 = 5.", " 5 + 7 = 2."]))
    '<think> by 2 2 + 9 + 4 = 5. 5 + 7 = 2.</think><answer> 2</answer>'
    """
    return [f"<think> by {size}", *steps, f"</think><answer> {steps[-1].split()[-1].rstrip('.')}</answer>"]


@dataclass(frozen=True, eq=False)
class SteppedSums:
    """Tasks and demonstrations.

    shares   of the demonstrations, by the size of their steps; they sum to 1
    misread  chance that a step of a demonstration misreads a digit
    """

    shares: dict[str, float]
    misread: float = 0.0
    seed: int = 0

    def to_task(self, digits: Digits, name: str) -> Task:
        """The task of some digits; tags: terms, category, difficulty (additions), solution, steps."""
        return sum_task(digits, name, lambda steps: completion(1, [str(s) for s in steps]))

    def demo(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th demonstration; tags: those of the task, kind, way (by N), style (the same)."""
        draw = generator(self.seed, "write", i)
        size = int(pick(self.shares, draw.random()))
        return self.written(questions.sample("demo", i), f"demo/{i}", size, draw, False)

    def practice(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th question whose size of steps is given, any of them equally often."""
        draw = generator(self.seed, "practise", i)
        size = int(draw.choice([int(n) for n in self.shares]))
        return self.written(questions.sample("practice", i), f"practice/{i}", size, draw, True)

    def written(self, digits: Digits, name: str, size: int, draw: np.random.Generator, given: bool) -> Task:
        """A demonstration of one size of steps, which its prompt names where it is given."""
        item = self.to_task(digits, name)
        first, *rest = completion(size, worked_in_steps(digits, size, self.misread, draw))
        tags = {**item.tags, "kind": "practice" if given else "demo", "way": f"by {size}", "style": f"by {size}"}
        if given:
            return Task(name, item.prompt + first, item.answer, ("".join(rest),), tags)
        return Task(name, item.prompt, item.answer, ("".join([first, *rest]),), tags)


@task
def stepped_sums(
    terms: tuple[int, int] = (4, 12),
    largest: int = 3,
    sizes: tuple[int, ...] = (1, 2, 4),
    shares: tuple[float, ...] = (0.2, 0.2, 0.6),
    misread: float = 0.0,
    n_test: int = 2000,
    seed: int = 0,
) -> TaskSource:
    """The last digit of a sum of digits, in steps that add one digit or more: few hard steps or many easy ones.

    A step of more digits has more that it can get wrong, and more steps are more chances to go wrong, so that neither
    the longest nor the shortest solution has to be the best. It is the arithmetic of Wu et al. 2025 (2502.07266), whose
    solutions merge as many operators in a step as a word at their beginning says.

    terms    fewest and most digits
    largest  digit that is added to the first, which is any
    sizes    how many digits a step adds, one of these in a demonstration
    shares   of the demonstrations, by the size of their steps
    misread  chance that a step of a demonstration misreads one of its digits, and goes on with the result
    n_test   test questions at most; a fifth of all questions are kept for the test
    seed     of every random draw
    """
    task_options = dict(locals())
    fewest, most = check_range("stepped_sums", "terms", terms, FEWEST, 16)
    check_range("stepped_sums", "largest", (largest, MODULUS - 1), 1, MODULUS - 1)
    check_share("stepped_sums", "misread", misread)
    check_at_least("stepped_sums", "n_test", n_test, 1)
    for size in (len(sizes), *sizes):
        check_at_least("stepped_sums", "sizes", size, 1)
    if len(shares) != len(sizes) or abs(sum(shares) - 1) > 1e-6:
        raise BadValue(
            f"task stepped_sums: shares must be one for each of {len(sizes)} sizes, and sum to 1, not {shares}"
        )
    for share in shares:
        check_share("stepped_sums", "shares", share)
    sums = SteppedSums({str(n): share for n, share in zip(sizes, shares, strict=True)}, misread, seed)
    draw, kinds = partial(draw_digits, largest), tuple(range(fewest, most + 1))
    questions = QuestionSampler("stepped_sums", kinds, draw, text_of, sums.to_task, "terms", n_test, seed)
    # The tokenizer does not depend on shares, so that what was practised with it serves all of them.
    evenly = replace(sums, shares=dict.fromkeys(sums.shares, 1 / len(sizes)))
    return questions.source(
        partial(sums.demo, questions),
        practice=partial(sums.practice, questions),
        written=partial(evenly.demo, questions),
        defaults={"max_tokens": 6 * (most - 1) + 12, "warm_practice_steps": 1000, "warm_steps": 200},
        task_options=task_options,
    )
