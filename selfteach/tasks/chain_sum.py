"""Arithmetic: chains of additions and subtractions of small numbers, worked out step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np

from ..core.address import generator, key, uniform
from ..core.errors import BadValue
from ..core.registry import task
from ..core.task import Source, Task
from .quiz import number

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
TESTED = 0.2  # share of all expressions that only the test asks
WORDED = 3000  # demonstrations that the tokenizer sees
STYLES = ("terse", "verbose", "mixed")


class Sum(NamedTuple):
    """A chain: its first number, then (sign, number) pairs. No total on the way is below 0."""

    first: int
    rest: tuple[tuple[int, int], ...]

    @property
    def text(self) -> str:
        return " ".join([str(self.first), *(f"{'+' if sign > 0 else '-'} {n}" for sign, n in self.rest)])

    @property
    def total(self) -> int:
        return self.first + sum(sign * n for sign, n in self.rest)


@dataclass(frozen=True, eq=False)
class Sums:
    """Chains of `terms` numbers (fewest, most) of so many digits, and how they are demonstrated."""

    terms: tuple[int, int] = (2, 4)
    digits: int = 1
    style: Literal["terse", "verbose", "mixed"] = "mixed"
    noise: float = 0.5
    n_test: int = 400
    seed: int = 0

    def draw(self, draw: np.random.Generator, length: int) -> Sum:
        """A random chain of `length` numbers."""
        top = 10**self.digits
        first, rest = int(draw.integers(1, top)), []
        total = first
        for _ in range(length - 1):
            sign = 1 if total == 0 or draw.random() < 0.5 else -1
            n = int(draw.integers(1, top if sign > 0 else min(top, total + 1)))
            rest.append((sign, n))
            total += sign * n
        return Sum(first, tuple(rest))

    def tested(self, chain: Sum) -> bool:
        """True for the expressions that belong to the test: fixed by the expression and the seed alone."""
        return float(uniform(key(self.seed, "split", chain.text), 0)) < TESTED

    def pick(self, *address: object) -> Sum:
        """A training chain at an address."""
        draw = generator(self.seed, *address)
        length = int(draw.integers(self.terms[0], self.terms[1] + 1))
        while True:
            chain = self.draw(draw, length)
            if not self.tested(chain):
                return chain

    def task(self, chain: Sum, name: str) -> Task:
        """The task of a chain. tags: terms, difficulty (steps), hint (the first step)."""
        first = steps(chain)[0]
        tags = {"terms": len(chain.rest) + 1, "difficulty": len(chain.rest), "hint": f"{first[0]} {first[1]} {first[2]} = {first[3]}."}
        return Task(name, f"compute: {chain.text} =\n", (str(chain.total),), tags=tags)

    def train(self, i: int) -> Task:
        """The i-th training task."""
        return self.task(self.pick("train", i), f"train/{i}")

    @cached_property
    def test(self) -> tuple[Task, ...]:
        """Test expressions without repeats, equally many of each length as far as there are so many."""
        lengths = range(self.terms[0], self.terms[1] + 1)
        rows: list[list[Task]] = []
        for rank, length in enumerate(lengths):
            want = self.n_test // len(lengths) + (rank < self.n_test % len(lengths))
            rows.append([])
            draw, seen = generator(self.seed, "test", length), set[Sum]()
            for _ in range(20 * want + 200):
                chain = self.draw(draw, length)
                if len(seen) < want and chain not in seen and self.tested(chain):
                    seen.add(chain)
                    rows[-1].append(self.task(chain, f"test/{length}-terms/{len(seen)}"))
        return tuple(t for turn in zip_longest(*rows) for t in turn if t is not None)

    def demo(self, i: int) -> Task:
        """The i-th demonstration. tags: those of the task, `style`, and slip ("" if it is right)."""
        chain = self.pick("demo", i)
        task, draw = self.task(chain, f"demo/{i}"), generator(self.seed, "write", i)
        style = STYLES[int(draw.integers(2))] if self.style == "mixed" else self.style
        slip = "arithmetic" if draw.random() < self.noise else ""
        lines = steps(chain, slip_at=int(draw.integers(len(chain.rest))), by=_error(draw)) if slip else steps(chain)
        # The spaces make a number the same token after a tag as in the middle of a line.
        text = f"<think> {written(lines, style)}</think><answer> {lines[-1][3]}</answer>"
        return Task(task.id, task.prompt, task.answer, (text,), {**task.tags, "kind": "demo", "style": style, "slip": slip})

    def words(self) -> Iterator[str]:
        """Text for the tokenizer: every number up to the largest total, the test questions, and a stretch of demonstrations."""
        yield " ".join(str(n) for n in range(min(self.terms[1] * 10**self.digits, 1000)))
        for t in self.test:
            yield t.prompt
        for i in range(WORDED):
            item = self.demo(i)
            yield item.prompt + item.data[0]


def steps(chain: Sum, slip_at: int = -1, by: int = 0) -> list[tuple[int, str, int, int]]:
    """(total so far, sign, number, new total) of each step. From step `slip_at` on totals are off by `by`; by -`by` if one fell below 0."""
    totals = [chain.first]
    for sign, n in chain.rest:
        totals.append(totals[-1] + sign * n)
    if slip_at >= 0:
        off = by if min(totals[slip_at + 1 :]) + by >= 0 else -by
        totals[slip_at + 1 :] = [t + off for t in totals[slip_at + 1 :]]
    return [(totals[i], "+" if sign > 0 else "-", n, totals[i + 1]) for i, (sign, n) in enumerate(chain.rest)]


def written(lines: list[tuple[int, str, int, int]], style: str) -> str:
    """Steps in words: `12 + 7 = 19. 19 - 3 = 16.`, or with more said around them."""
    if style == "terse":
        return " ".join(f"{a} {op} {n} = {b}." for a, op, n, b in lines)
    said = [
        f"{'first' if i == 0 else 'then'} we {'add' if op == '+' else 'take away'} {n}: {a} {op} {n} = {b}." for i, (a, op, n, b) in enumerate(lines)
    ]
    return f"we start with {lines[0][0]}. {' '.join(said)} so the answer is {lines[-1][3]}."


def _error(draw: np.random.Generator) -> int:
    """By how much a slip is off: mostly one or two, sometimes ten."""
    return int(draw.choice([-10, -2, -1, -1, 1, 1, 2, 10]))


@task
def chain_sum(
    terms: tuple[int, int] = (2, 4),
    digits: int = 1,
    style: Literal["terse", "verbose", "mixed"] = "mixed",
    noise: float = 0.5,
    n_test: int = 400,
    seed: int = 0,
) -> Source:
    """Sums and differences of a few small numbers; the steps are written out before the answer. No total is below 0.

    terms   fewest and most numbers in an expression
    digits  digits of a number at most, 1 to 3; two or more ask much of a tiny model
    style   how demonstrations are worded: terse, verbose, or mixed (half of each)
    noise   share of the demonstrations with an arithmetic slip, which is gone on from
    n_test  test expressions at most; a fifth of all expressions are kept for the test
    seed    of everything drawn
    """
    knobs = dict(locals())
    if not isinstance(terms, tuple | list) or len(terms) != 2 or not 2 <= terms[0] <= terms[1] <= 12:
        raise BadValue(f"task chain_sum: terms must be (fewest, most) from 2 to 12, such as (2, 4), not {terms!r}")
    if number("chain_sum", "digits", digits) not in (1, 2, 3):
        raise BadValue(f"task chain_sum: digits must be 1, 2 or 3, not {digits!r}")
    if style not in STYLES:
        raise BadValue(f"task chain_sum: style must be terse, verbose or mixed, not {style!r}")
    if not 0 <= number("chain_sum", "noise", noise) <= 1:
        raise BadValue(f"task chain_sum: noise must be a share from 0 to 1, not {noise!r}")
    if number("chain_sum", "n_test", n_test) < 1:
        raise BadValue(f"task chain_sum: n_test must be at least 1, not {n_test!r}")
    sums = Sums((terms[0], terms[1]), digits, style, noise, n_test, seed)
    longest = (8 if style == "terse" else 18) * (terms[1] - 1) + 20
    return Source(
        name="chain_sum",
        train=sums.train,
        test=sums.test,
        demos=sums.demo,
        words=sums.words,
        tags=TAGS,
        defaults={"max_tokens": longest, "by": "terms", "lr": 1e-4, "warm_steps": 1000, "warm_batch": 16, "warm_lr": 2e-3},
        knobs=knobs,
        about={"test questions": len(sums.test), "largest number": 10**digits - 1, "share kept for the test": TESTED},
    )
