"""Sums of digits modulo 10 with a hesitation after every addition, short or long: right answers of many lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from .digit_judges import MODULUS
from .digit_sum import CERTAIN, FEWEST, Digits, completion, draw_digits, sum_task, text_of
from .options import check_at_least, check_range, check_share
from .question_sampler import QuestionSampler

HESITATION = " hm"


def hesitant_steps(
    digits: Digits, chance: float, most: int, draw: np.random.Generator, last: bool = False
) -> list[str]:
    """The additions of a sum, behind each a hesitation: a word by a chance, and another, up to `most` of them.

    last: behind the last addition alone.

    >>> hesitant_steps((2, 9, 4), 1.0, 2, np.random.default_rng(0))
    [' 2 + 9 = 1.', ' hm', ' hm', ' 1 + 4 = 5.', ' hm', ' hm']
    """
    pieces, steps = list[str](), CERTAIN.add(digits)
    for n, step in enumerate(steps, 1):
        pieces.append(str(step))
        for _ in range(most if n == len(steps) or not last else 0):
            if draw.random() >= chance:
                break
            pieces.append(HESITATION)
    return pieces


@dataclass(frozen=True, eq=False)
class HesitantSums:
    """Tasks and demonstrations; the fields are as in `hesitant_sums`."""

    hesitant: float
    most: int
    guess: float
    last: bool = False
    seed: int = 0

    def to_task(self, digits: Digits, name: str) -> Task:
        """The task of some digits; tags: terms, category, difficulty (additions), solution, steps."""
        return sum_task(digits, name, lambda steps: completion("slowly", steps, steps[-1].result))

    def demo(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th demonstration; tags: those of the task, kind, way, style (the same)."""
        draw = generator(self.seed, "write", i)
        way = "guess" if draw.random() < self.guess else "slowly"
        return self.written(questions.sample("demo", i), f"demo/{i}", way, draw, False)

    def practice(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th question whose prompt begins the long way, which is the one with something to get right."""
        draw = generator(self.seed, "practise", i)
        return self.written(questions.sample("practice", i), f"practice/{i}", "slowly", draw, True)

    def written(self, digits: Digits, name: str, way: str, draw: np.random.Generator, given: bool) -> Task:
        """A demonstration of a way, which its prompt names where it is given."""
        item = self.to_task(digits, name)
        if way == "slowly":
            steps = hesitant_steps(digits, self.hesitant, self.most, draw, self.last)
            first, *rest = completion(way, steps, int(item.answer[0]))
        else:
            first, *rest = completion(way, (), int(draw.integers(MODULUS)))
        tags = {**item.tags, "kind": "practice" if given else "demo", "way": way, "style": way}
        if given:
            return replace(item, prompt=item.prompt + first, data=("".join(rest),), tags=tags)
        return replace(item, data=("".join([first, *rest]),), tags=tags)


@task
def hesitant_sums(
    terms: tuple[int, int] = (5, 5),
    largest: int = MODULUS - 1,
    hesitant: float = 0.9,
    most: int = 20,
    guess: float = 0.1,
    last: bool = False,
    n_test: int = 2000,
    seed: int = 0,
) -> TaskSource:
    """The last digit of a sum of digits, worked out with hesitations: right answers of many lengths.

    Where `digit_sum` has one long way and one of half its length, here answers can become shorter a word at a time, and
    those to one question differ much in length. Hesitations help nothing.

    terms      fewest and most digits
    largest    digit that is added to the first, which is any
    hesitant   chance that a demonstration hesitates behind an addition, by one word, and then by another
    most       words of a hesitation at most
    guess      share of the demonstrations that guess at once
    last       hesitations come after the last addition alone, when the answer is already derived
    n_test     test questions at most; a fifth of all questions are kept for the test
    seed       of every random draw
    """
    task_options = dict(locals())
    fewest, longest = check_range("hesitant_sums", "terms", terms, FEWEST, 16)
    check_range("hesitant_sums", "largest", (largest, MODULUS - 1), 1, MODULUS - 1)
    check_share("hesitant_sums", "hesitant", hesitant)
    check_share("hesitant_sums", "guess", guess)
    check_at_least("hesitant_sums", "most", most, 0)
    check_at_least("hesitant_sums", "n_test", n_test, 1)
    sums = HesitantSums(hesitant, most, guess, last, seed)
    draw, kinds = partial(draw_digits, largest), tuple(range(fewest, longest + 1))
    questions = QuestionSampler("hesitant_sums", kinds, draw, text_of, sums.to_task, "terms", n_test, seed)
    # The tokenizer does not depend on shares, so that what was practised with it serves all of them.
    evenly = replace(sums, hesitant=0.5, guess=0.5)
    return questions.source(
        partial(sums.demo, questions),
        practice=partial(sums.practice, questions),
        written=partial(evenly.demo, questions),
        defaults={
            "max_tokens": 6 * (longest - 1) + most * (1 if last else longest - 1) + 9,
            "warm_steps": 2500,
        },
        task_options=task_options,
    )
