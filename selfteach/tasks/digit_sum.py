"""Sums of digits modulo 10, with several ways to an answer that differ in cost, risk and length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import BadValue
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from .digit_judges import MODULUS, better_worked, mark, right_addition, taste
from .options import check_at_least, check_range, check_share
from .question_sampler import TEST_SHARE, THINKING, QuestionSampler, pick, solution_tags, with_guidance

FEWEST = 3  # digits of a question
ESTIMATED_IN_PRACTICE = 0.2  # chance of an estimate, where there are any
Digits = tuple[int, ...]


class Step(NamedTuple):
    """One addition modulo 10. An estimate, which is written with `~`, may be wrong."""

    total: int
    digit: int
    result: int
    estimated: bool = False

    def __str__(self) -> str:
        return f" {self.total} + {self.digit} {'~' if self.estimated else '='} {self.result}."


def draw_digits(largest: int, draw: np.random.Generator, terms: int) -> Digits:
    """So many random digits: any as the first, then none above the largest."""
    return tuple(draw.integers(0, [MODULUS] + [largest + 1] * (terms - 1)).tolist())


def text_of(digits: Digits) -> str:
    """The question: `add 2 9 4`."""
    return f"add {' '.join(map(str, digits))}"


@dataclass(frozen=True, eq=False)
class Worker:
    """Works out sums as a demonstration shows it; every random choice is of `draw`.

    estimated  chance that the first step is an estimate: a random result, with which the sum goes on
    tiring     by how much this chance grows from step to step
    guesses    a guess is one of the numbers from 0 up to this one
    """

    draw: np.random.Generator
    estimated: float = 0.0
    tiring: float = 0.0
    guesses: int = MODULUS

    def add(self, digits: Sequence[int]) -> list[Step]:
        """The additions from left to right."""
        steps, total = list[Step](), digits[0]
        for n, digit in enumerate(digits[1:]):
            chance = self.estimated + self.tiring * n
            if chance and self.draw.random() < chance:
                steps.append(Step(total, digit, int(self.draw.integers(MODULUS)), True))
            else:
                steps.append(Step(total, digit, (total + digit) % MODULUS))
            total = steps[-1].result
        return steps

    def guess(self) -> int:
        """A random number."""
        return int(self.draw.integers(self.guesses))


CERTAIN = Worker(generator(0))  # it estimates nothing and guesses nothing, so it never draws

# Each way: (worker, digits) -> (what is written, the answer).
Way = Callable[[Worker, Digits], tuple[list[Any], int]]


def slowly(worker: Worker, digits: Digits) -> tuple[list[Any], int]:
    """Every addition."""
    steps = worker.add(digits)
    return list(steps), steps[-1].result


def quickly(worker: Worker, digits: Digits) -> tuple[list[Any], int]:
    """The first half of the additions, then a guess."""
    steps = worker.add(digits)
    return list(steps[: len(steps) // 2]), worker.guess()


def guess(worker: Worker, digits: Digits) -> tuple[list[Any], int]:
    """A guess at once."""
    return [], worker.guess()


def twice(worker: Worker, digits: Digits) -> tuple[list[Any], int]:
    """Every addition, and all of them again as a check, which counts."""
    again = worker.add(digits)
    return [*worker.add(digits), " check", *again], again[-1].result


def looping(worker: Worker, digits: Digits) -> tuple[list[Any], int]:
    """Some of the additions, the last of them again and again, then a guess."""
    steps = worker.add(digits)
    upto = int(worker.draw.integers(1, len(steps) + 1))
    repeats = int(worker.draw.integers(2, 2 * len(steps) + 2))
    return [*steps[:upto], *[steps[upto - 1]] * repeats], worker.guess()


def skipping(worker: Worker, digits: Digits) -> tuple[list[Any], int]:
    """Every addition but the last: an error that all who make it agree on."""
    return slowly(worker, digits[:-1])


UNPRACTISED = ("guess", "quickly", "looping")  # there is little in them to get right
WAYS: dict[str, Way] = {f.__name__: f for f in (slowly, quickly, guess, twice, looping, skipping)}


@dataclass(frozen=True, eq=False)
class DigitSums:
    """Tasks and demonstrations.

    shares     of the demonstrations, by way; they sum to 1
    practised  share of the demonstrations whose way is given, each equally often that has much to get right:
               they teach how to go it, not when
    """

    shares: dict[str, float]
    practised: float = 0.0
    estimated: float = 0.0
    tiring: float = 0.0
    guesses: int = MODULUS
    hinted: float = 0.0
    seed: int = 0

    def to_task(self, digits: Digits, name: str) -> Task:
        """The task of some digits; tags: terms, category, difficulty (additions), hint, solution, steps."""
        steps, answer = slowly(CERTAIN, digits)
        tags = {
            "terms": len(digits),
            "category": f"{len(digits)} terms",
            "difficulty": len(steps),
            "hint": f"{steps[0]}",
            **solution_tags(*completion("slowly", steps, answer)),
        }
        judges = {
            "step": right_addition(),
            "pair": taste(),
            "pair_consistent": taste(circular=False),
            "pair_margin": better_worked(),
            "coarse": mark(),
        }
        return Task(name, f"{text_of(digits)} =\n", (str(answer),), tags=tags, judges=judges)

    def demo(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th demonstration; tags: those of the task, and its way."""
        draw = generator(self.seed, "write", i)
        practised = draw.random() < self.practised
        way = pick(self.shares, draw.random())
        if practised:
            way = str(draw.choice([w for w in self.shares if w not in UNPRACTISED] or [way]))
        return self.written(questions.sample("demo", i), f"demo/{i}", way, practised, draw)

    def practice(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th question whose way is given, one of those that have much to get right, whatever their shares.

        Of as many digits as the task has, and fewer. Few additions are estimates, from which nothing is learned.
        """
        draw = generator(self.seed, "practise", i)
        way = str(draw.choice([w for w in WAYS if w not in UNPRACTISED]))
        kinds = tuple(range(FEWEST, questions.kinds[-1] + 1))
        estimates = ESTIMATED_IN_PRACTICE if self.estimated or self.tiring else 0.0
        seldom = replace(self, estimated=estimates, tiring=0.0)
        return seldom.written(questions.sample("practice", i, kinds=kinds), f"practice/{i}", way, True, draw)

    def written(self, digits: Digits, name: str, way: str, given: bool, draw: np.random.Generator) -> Task:
        """A demonstration of a way, which its prompt names where it is given; tag slip: "" where it is an expert's."""
        item = self.to_task(digits, name)
        steps, answer = WAYS[way](Worker(draw, self.estimated, self.tiring, self.guesses), digits)
        first, *rest = completion(way, steps, answer)
        prompt = with_guidance(item, item.prompt, self.hinted, draw)
        tags = {**item.tags, "kind": "practice" if given else "demo", "way": way}
        tags["slip"] = "" if way not in UNPRACTISED and str(answer) in item.answer and is_exact(steps) else way
        if given:
            return Task(item.id, prompt + first, item.answer, ("".join(rest),), tags)
        return Task(item.id, prompt, item.answer, ("".join([first, *rest]),), tags)


def is_exact(steps: Sequence[Any]) -> bool:
    """Whether no addition is an estimate."""
    return not any(isinstance(s, Step) and s.estimated for s in steps)


def completion(way: str, steps: Sequence[Any], answer: int) -> list[str]:
    """The pieces of a completion: the way's name, its steps, the answer."""
    return [f"<think> {way}", *map(str, steps), f"</think><answer> {answer}</answer>"]


def solve_text(digits: Digits) -> str:
    """The whole right completion."""
    return "".join(completion("slowly", *slowly(CERTAIN, digits)))


@task
def digit_sum(
    terms: tuple[int, int] = (5, 5),
    largest: int = MODULUS - 1,
    slowly: float = 0.3,
    quickly: float = 0.3,
    guess: float = 0.4,
    twice: float = 0.0,
    looping: float = 0.0,
    skipping: float = 0.0,
    practised: float = 0.5,
    estimated: float = 0.0,
    tiring: float = 0.0,
    guesses: int = MODULUS,
    hinted: float = 0.0,
    pool: int = 0,
    n_test: int = 2000,
    seed: int = 0,
) -> TaskSource:
    """The last digit of a sum of digits. Demonstrations show several ways; which of them pays is for RL to find out.

    terms      fewest and most digits
    largest    digit that is added to the first, which is any: the fewer there are, the sooner adding is learned
    slowly     share of the demonstrations that write out every addition
    quickly    that stop half-way and guess
    guess      that guess at once
    twice      that write out every addition, and all of them again as a check: right, and long
    looping    that write the same addition again and again, and guess: wrong, and long
    skipping   that leave out the last digit: wrong, and all alike
    practised  share of the demonstrations whose way is given with the question, each way equally often that
               has much to get right: what is well practised is not for that often chosen
    estimated  chance that the first addition of a demonstration is an estimate, which is marked and mostly wrong
    tiring     by how much this chance grows from addition to addition
    guesses    a guess is one of the numbers from 0 up to this one, and right once in so many
    hinted     share of the demonstrations whose prompt gives the first additions
    pool       questions to train on, which come round again and again; 0: no end of them
    n_test     test questions at most; a fifth of all questions are kept for the test
    seed       of every random draw

    The shares of the six ways sum to 1.
    """
    task_options = dict(locals())
    fewest, most = check_range("digit_sum", "terms", terms, FEWEST, 16)
    shares = {way: check_share("digit_sum", way, task_options[way]) for way in WAYS}
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise BadValue(f"task digit_sum: {', '.join(WAYS)} must sum to 1, not {sum(shares.values()):g}")
    for name in ("practised", "estimated", "tiring", "hinted"):
        check_share("digit_sum", name, task_options[name])
    check_range("digit_sum", "largest", (largest, MODULUS - 1), 1, MODULUS - 1)
    for name, least in (("guesses", 10), ("pool", 0), ("n_test", 1), ("seed", 0)):
        check_at_least("digit_sum", name, task_options[name], least)

    writer = DigitSums(
        {way: share for way, share in shares.items() if share}, practised, estimated, tiring, guesses, hinted, seed
    )
    draw, kinds = partial(draw_digits, largest), tuple(range(fewest, most + 1))
    questions = QuestionSampler("digit_sum", kinds, draw, text_of, writer.to_task, "terms", n_test, seed)
    demo = partial(writer.demo, questions)
    # The tokenizer does not depend on shares, so that what was practised with it serves all of them.
    evenly = replace(writer, shares=dict.fromkeys(WAYS, 1 / len(WAYS)), practised=0.0, guesses=MODULUS)
    steps = (most - 1) * (3 if looping else 2 if twice else 1)
    return TaskSource(
        name="digit_sum",
        train=(lambda i: questions.train(i % pool)) if pool else questions.train,
        test=questions.test,
        demos=demo,
        practice=partial(writer.practice, questions),
        words=lambda: questions.words(partial(evenly.demo, questions), []),
        tags=THINKING,
        defaults={
            "max_tokens": 6 * steps + 9,
            "by": "terms",
            "lr": 3e-4,
            "warm_steps": 2500,
            "warm_batch": 32,
            "warm_lr": 2e-3,
        },
        task_options=task_options,
        about={"test questions": len(questions.test), "share kept for the test": TEST_SHARE},
    )
