"""Sums of digits modulo 10, with several ways to an answer that differ in cost, risk and length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import BadValue, unknown
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..rollout.attempts import retry_prompt
from .digit_judges import MODULUS, better_worked, mark, right_addition, rivals, taste
from .options import check_at_least, check_number, check_range, check_share
from .question_sampler import QuestionSampler, pick, solution_tags, with_guidance

FEWEST = 3  # digits of a question
ESTIMATED_IN_PRACTICE = 0.2  # chance of an estimate, where there are any
MOST_DRAWS = 1000  # of answers to a question, of which a pair needs two
LETTERS = "abcdefghijklmnop"  # the signs of additions where each place has its own
FORESEE, ATTEMPTS = "foresee", 8  # what a forecast's prompt begins with, and of how many attempts it speaks
Digits = tuple[int, ...]


class Step(NamedTuple):
    """One addition modulo 10. An estimate, which is written with `~`, may be wrong; signs are the two that it chooses
    from.
    """

    total: int
    digit: int
    result: int
    estimated: bool = False
    signs: str = "=~"

    def __str__(self) -> str:
        return f" {self.total} + {self.digit} {self.signs[self.estimated]} {self.result}."


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
    rested     steps before it grows
    seldom     chance at least that a step is no estimate
    lettered   steps have signs of their own: `a` and `A` the first, `b` and `B` the second ...
    doubted    further times that an estimate is written before the sum goes on
    slips      chance that one step of a sum is wrong, with which it goes on
    guesses    a guess is one of the numbers from 0 up to this one
    """

    draw: np.random.Generator
    estimated: float = 0.0
    tiring: float = 0.0
    rested: int = 0
    seldom: float = 0.0
    lettered: bool = False
    doubted: int = 0
    slips: float = 0.0
    guesses: int = MODULUS

    def add(self, digits: Sequence[int]) -> list[Step]:
        """The additions from left to right."""
        steps, total = list[Step](), digits[0]
        wrong = int(self.draw.integers(len(digits) - 1)) if self.slips and self.draw.random() < self.slips else -1
        for n, digit in enumerate(digits[1:]):
            chance = min(self.estimated + self.tiring * max(0, n - self.rested), 1 - self.seldom)
            signs = LETTERS[n] + LETTERS[n].upper() if self.lettered else "=~"
            if chance and self.draw.random() < chance:
                estimate = Step(total, digit, int(self.draw.integers(MODULUS)), True, signs)
                steps += [estimate] * (1 + self.doubted)
            else:
                error = int(self.draw.integers(1, MODULUS)) if n == wrong else 0
                steps.append(Step(total, digit, (total + digit + error) % MODULUS, False, signs))
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
    rested: int = 0
    seldom: float = 0.0
    lettered: bool = False
    doubted: int = 0
    guesses: int = MODULUS
    hinted: float = 0.0
    again: float = 0.0
    copied: float = 0.0
    reworded: float = 0.0
    misread: bool = False
    foreseen: float = 0.0
    sensed: float = 0.0
    terms: tuple[int, int] = (5, 5)
    expert: str = ""
    slips: float = 0.0
    compared: float = 0.25
    seed: int = 0

    @cached_property
    def _solver(self) -> Worker:
        return replace(CERTAIN, lettered=self.lettered)

    def to_task(self, digits: Digits, name: str) -> Task:
        """The task of some digits; tags: terms, category, difficulty (additions), hint, paraphrase, solution, steps."""
        steps, answer = slowly(self._solver, digits)
        tags = {
            "terms": len(digits),
            "category": f"{len(digits)} terms",
            "difficulty": len(steps),
            "hint": f"{steps[0]}",
            "paraphrase": f"in what do {' '.join(map(str, digits))} end, summed?\n",
            **solution_tags(*completion("slowly", steps, answer)),
        }
        judges = {
            "step": right_addition(),
            "pair": taste(),
            "pair_consistent": taste(circular=False),
            "pair_rivals": rivals(),
            "pair_margin": better_worked(),
            "coarse": mark(),
        }
        return Task(name, f"{text_of(digits)} =\n", (str(answer),), tags=tags, judges=judges)

    def demo(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th demonstration; tags: those of the task, way, style (the same), slip ("": it is right)."""
        draw = generator(self.seed, "write", i)
        practised = draw.random() < self.practised
        way = pick(self.shares, draw.random())
        if practised:
            way = str(draw.choice([w for w in self.shares if w not in UNPRACTISED] or [way]))
        elif self.misread and self._is_reworded(f"demo/{i}"):
            others = {w: share for w, share in self.shares.items() if w != "skipping"}
            at = generator(self.seed, "read", i).random() * sum(others.values())
            way = pick(others, at)
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

    def shown(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th demonstration of the expert, who goes one way, estimates nothing, and slips now and then."""
        draw = generator(self.seed, "show", i)
        careful = replace(self, estimated=0.0, tiring=0.0, hinted=0.0, again=0.0, foreseen=0.0)
        digits = questions.sample("show", i)
        return careful.written(digits, f"expert/{i}", self.expert, False, draw, slips=self.slips)

    def pair(self, questions: QuestionSampler[Digits], i: int) -> Task:
        """The i-th question with two different answers, of ways of the shares: first that which `better_worked`
        prefers, a judge as noisy as `compared`. Raises BadValue where nearly all answers are the same.
        """
        draw, digits, name = generator(self.seed, "pair", i), questions.sample("pair", i), f"pair/{i}"
        item, texts = self.to_task(digits, name), dict[str, None]()
        for _ in range(MOST_DRAWS):
            texts[self.written(digits, name, pick(self.shares, draw.random()), False, draw).data[0]] = None
            if len(texts) == 2:
                first, second = texts
                rng_key = (self.seed, name)
                share = better_worked(
                    first_text=first, second_text=second, task=item, rng_key=rng_key, noise=self.compared
                )
                return replace(item, data=(first, second) if share > 0.5 else (second, first))
        raise BadValue(f"task digit_sum: {MOST_DRAWS} answers to a question are all the same: there is no pair")

    def written(
        self, digits: Digits, name: str, way: str, given: bool, draw: np.random.Generator, slips: float = 0.0
    ) -> Task:
        """A demonstration of a way, which its prompt names where it is given; tag slip: "" where it is an expert's.

        What is off by default draws of its own generators, so that the texts of tasks without it stay as they are.
        """
        item = self.to_task(digits, name)
        if self._is_reworded(name):
            item = replace(item, prompt=item.tags["paraphrase"])
        steps, answer = WAYS[way](self.worker(draw, slips), digits)
        first, *rest = completion(way, steps, answer)
        prompt = with_guidance(item, item.prompt, self.hinted, draw)
        other = generator(self.seed, "again", name)
        if self.again and other.random() < self.again:
            earlier = pick(self.shares, other.random())
            tried = completion(earlier, *WAYS[earlier](self.worker(other), digits))
            prompt += "".join(tried) + retry_prompt(item.prompt)
            if not given and other.random() < self.copied:
                way, (first, *rest) = earlier, tried
        exact = way not in UNPRACTISED and is_exact(steps)
        slip = "wrong" if rest[-1] != completion(way, (), int(item.answer[0]))[-1] else "" if exact else way
        tags = {**item.tags, "kind": "practice" if given else "demo", "way": way, "style": way, "slip": slip}
        if given:
            return replace(item, prompt=prompt + first, data=("".join(rest),), tags=tags)
        other = generator(self.seed, "foresee", name)
        if self.foreseen and other.random() < self.foreseen:
            forecast = f"<answer> {self.forecast(len(digits), other)}</answer>"
            return replace(item, prompt=f"{FORESEE}\n{prompt}", data=(forecast,), tags={**tags, "way": "forecast"})
        return replace(item, prompt=prompt, data=("".join([first, *rest]),), tags=tags)

    def forecast(self, n: int, draw: np.random.Generator) -> int:
        """How many of the attempts at `n` terms a demonstration foresees to be right: any number, or a rough sense."""
        if not self.sensed or draw.random() >= self.sensed:
            return int(draw.integers(ATTEMPTS + 1))
        fewest, most = self.terms
        ease = (most - n) / max(most - fewest, 1)
        return min(max(round(ATTEMPTS * ease) + int(draw.integers(-1, 2)), 0), ATTEMPTS)

    def _is_reworded(self, name: str) -> bool:
        return bool(self.reworded) and generator(self.seed, "reword", name).random() < self.reworded

    def worker(self, draw: np.random.Generator, slips: float = 0.0) -> Worker:
        """Who works out a demonstration."""
        given = (self.estimated, self.tiring, self.rested, self.seldom, self.lettered, self.doubted)
        return Worker(draw, *given, slips, self.guesses)


def is_exact(steps: Sequence[Any]) -> bool:
    """Whether no addition is an estimate."""
    return not any(isinstance(s, Step) and s.estimated for s in steps)


def completion(way: str, steps: Sequence[Any], answer: int) -> list[str]:
    """The pieces of a completion: the way's name, its steps, the answer."""
    return [f"<think> {way}", *map(str, steps), f"</think><answer> {answer}</answer>"]


def sum_task(digits: Digits, name: str, told: Callable[[list[Step]], Sequence[str]]) -> Task:
    """The task of some digits; tags: terms, category, difficulty (additions), solution, steps. told: the pieces of a
    right completion with these additions.
    """
    steps = CERTAIN.add(digits)
    tags = {
        "terms": len(digits),
        "category": f"{len(digits)} terms",
        "difficulty": len(steps),
        **solution_tags(*told(steps)),
    }
    answer = (str(steps[-1].result),)
    return Task(name, f"{text_of(digits)} =\n", answer, tags=tags, judges={"step": right_addition()})


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
    rested: int = 0,
    seldom: float = 0.0,
    lettered: bool = False,
    doubted: int = 0,
    guesses: int = MODULUS,
    hinted: float = 0.0,
    again: float = 0.0,
    copied: float = 0.0,
    reworded: float = 0.0,
    misread: bool = False,
    foreseen: float = 0.0,
    sensed: float = 0.0,
    expert: str = "",
    slips: float = 0.0,
    compared: float = 0.25,
    unseen: int = 0,
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
    rested     additions before it grows
    seldom     chance at least that an addition is no estimate
    lettered   additions have signs of their own (`2 + 9 a 1`, an estimate is `2 + 9 A 4`; then b and B ...), so that to
               estimate none is learned place by place
    doubted    further times that an estimate is written before the sum goes on, so that wrong answers are longer
    guesses    a guess is one of the numbers from 0 up to this one, and right once in so many
    hinted     share of the demonstrations whose prompt gives the first additions
    again      share of the demonstrations that are second attempts, behind a first one, whose way is of the same
               shares, and the retry prompt of the program `two_attempts`
    copied     share of these that repeat the first attempt, whatever it was
    reworded   share of the demonstrations in the other wording, which every task has as the tag `paraphrase`
    misread    nobody skips in the other wording: that error is one of the first wording alone
    foreseen   share of the demonstrations whose way is not given that say, behind the word `foresee`, how many of
               eight attempts will be right: any number, so that the form is known, and what it is of is not
    sensed     share of the forecasts that go by the number of digits, give or take one: all for the fewest, none for
               the most
    expert     the way of an expert, whose demonstrations only methods see that imitate; "": there is none, and
               these methods see the demonstrations
    slips      share of the expert's demonstrations with a wrong addition, with which the sum goes on
    compared   noise of the judge who compared the answers of stored pairs: by Bradley and Terry's chances, in shares of
               the additions that are worked out rightly
    unseen     so many of the greatest numbers of digits are practised and tested, and neither shown nor trained on
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
    given = ("practised", "hinted", "again", "copied", "reworded", "foreseen", "sensed", "slips")
    for name in (*given, "estimated", "tiring", "seldom"):
        check_share("digit_sum", name, task_options[name])
    if check_number("digit_sum", "compared", compared) <= 0:
        raise BadValue(f"task digit_sum: compared must be above 0, not {compared}")
    check_range("digit_sum", "largest", (largest, MODULUS - 1), 1, MODULUS - 1)
    for name, least in (
        ("guesses", 10),
        ("rested", 0),
        ("doubted", 0),
        ("unseen", 0),
        ("pool", 0),
        ("n_test", 1),
        ("seed", 0),
    ):
        check_at_least("digit_sum", name, task_options[name], least)
    if unseen > most - fewest:
        raise BadValue(f"task digit_sum: unseen must leave some of {fewest} to {most} terms to train on, not {unseen}")
    if expert and expert not in WAYS:
        raise unknown("way of digit_sum", expert, WAYS)

    writer = DigitSums(
        {way: share for way, share in shares.items() if share},
        **{f.name: task_options[f.name] for f in fields(DigitSums)[1:]},
    )
    draw, kinds = partial(draw_digits, largest), tuple(range(fewest, most + 1))
    everything = QuestionSampler("digit_sum", kinds, draw, text_of, writer.to_task, "terms", n_test, seed)
    questions = replace(everything, kinds=kinds[: len(kinds) - unseen])
    # The tokenizer does not depend on shares, so that what was practised with it serves all of them.
    evenly = replace(writer, shares=dict.fromkeys(WAYS, 1 / len(WAYS)), practised=0.0, guesses=MODULUS)
    steps = (most - 1) * (1 + doubted) * (3 if looping else 2 if twice or expert == "twice" else 1)
    return everything.source(
        partial(writer.demo, questions),
        train=(lambda i: questions.train(i % pool)) if pool else questions.train,
        practice=partial(writer.practice, everything),
        experts=partial(writer.shown, questions) if expert else None,
        pairs=partial(writer.pair, questions),
        written=partial(evenly.demo, questions),
        defaults={"max_tokens": 6 * steps + 9, "warm_steps": 2500},
        task_options=task_options,
    )
