"""Arithmetic: chains of additions and subtractions of small numbers, worked out step by step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from ..core.address import generator
from ..core.errors import BadValue
from ..core.registry import task
from ..core.task import Source, Task
from ..rollout.attempts import doubted
from .drawn import TESTED, THINKING, Drawn, helped, solved
from .options import least, number, share, span

STYLES = ("terse", "verbose", "mixed")


class Sum(NamedTuple):
    """A chain: its first number, then (sign, number) pairs. No total on the way is below 0."""

    first: int
    rest: tuple[tuple[int, int], ...]

    @property
    def text(self) -> str:
        return " ".join([str(self.first), *(f"{'+' if sign > 0 else '-'} {n}" for sign, n in self.rest)])

    @property
    def told(self) -> str:
        """The chain in words: the other wording of the question."""
        said = ", ".join(f"{'add' if sign > 0 else 'take away'} {n}" for sign, n in self.rest)
        return f"start with {self.first}, {said}"

    @property
    def total(self) -> int:
        return self.first + sum(sign * n for sign, n in self.rest)


def draw_sum(draw: np.random.Generator, length: int, digits: int = 1) -> Sum:
    """A random chain of `length` numbers."""
    top = 10**digits
    first, rest = int(draw.integers(1, top)), []
    total = first
    for _ in range(length - 1):
        sign = 1 if total == 0 or draw.random() < 0.5 else -1
        n = int(draw.integers(1, top if sign > 0 else min(top, total + 1)))
        rest.append((sign, n))
        total += sign * n
    return Sum(first, tuple(rest))


@dataclass(frozen=True, eq=False)
class Writer:
    """How sums are put and demonstrated."""

    style: Literal["terse", "verbose", "mixed"] = "mixed"
    noise: float = 0.5
    reworded: float = 0.0
    hinted: float = 0.0
    again: float = 0.0
    seed: int = 0

    def ask(self, chain: Sum, name: str) -> Task:
        """The task of a chain. tags: terms, category, difficulty (steps), hint (the first step), solution, steps, paraphrase."""
        first = steps(chain)[0]
        tags = {
            "terms": len(chain.rest) + 1,
            "category": f"{len(chain.rest) + 1} terms",
            "difficulty": len(chain.rest),
            "hint": f"{first[0]} {first[1]} {first[2]} = {first[3]}.",
            "paraphrase": f"{chain.told}: what is left?\n",
            **solved(*pieces(steps(chain), "verbose" if self.style == "verbose" else "terse")),
        }
        return Task(name, f"compute: {chain.text} =\n", (str(chain.total),), tags=tags)

    def demo(self, drawn: Drawn[Sum], i: int) -> Task:
        """The i-th demonstration. tags: those of the task, `style`, and slip ("" if it is right)."""
        chain = drawn.pick("demo", i)
        task, draw = self.ask(chain, f"demo/{i}"), generator(self.seed, "write", i)
        style = STYLES[int(draw.integers(2))] if self.style == "mixed" else self.style
        lines, slip = self._attempt(chain, draw)
        prompt = task.tags["paraphrase"] if draw.random() < self.reworded else task.prompt
        prompt = helped(task, prompt, self.hinted, draw)
        if self.again and draw.random() < self.again:
            first, _ = self._attempt(chain, draw)
            prompt += "".join(pieces(first, style)) + doubted(task.prompt)
        return Task(task.id, prompt, task.answer, ("".join(pieces(lines, style)),), {**task.tags, "kind": "demo", "style": style, "slip": slip})

    def _attempt(self, chain: Sum, draw: np.random.Generator) -> tuple[list[tuple[int, str, int, int]], str]:
        """The steps of one way to work it out, and the slip in them, if there is one."""
        if draw.random() >= self.noise:
            return steps(chain), ""
        return steps(chain, slip_at=int(draw.integers(len(chain.rest))), by=_error(draw)), "arithmetic"


def steps(chain: Sum, slip_at: int = -1, by: int = 0) -> list[tuple[int, str, int, int]]:
    """(total so far, sign, number, new total) of each step. From step `slip_at` on totals are off by `by`; by -`by` if one fell below 0."""
    totals = [chain.first]
    for sign, n in chain.rest:
        totals.append(totals[-1] + sign * n)
    if slip_at >= 0:
        off = by if min(totals[slip_at + 1 :]) + by >= 0 else -by
        totals[slip_at + 1 :] = [t + off for t in totals[slip_at + 1 :]]
    return [(totals[i], "+" if sign > 0 else "-", n, totals[i + 1]) for i, (sign, n) in enumerate(chain.rest)]


def pieces(lines: list[tuple[int, str, int, int]], style: str) -> list[str]:
    """A completion, step by step: `12 + 7 = 19. 19 - 3 = 16.` and the answer, or with more said around the steps."""
    # The spaces make a number the same token after a tag as in the middle of a line.
    sums, total = [f"{a} {op} {n} = {b}." for a, op, n, b in lines], lines[-1][3]
    begin, end = "<think>", f"</think><answer> {total}</answer>"
    if style == "verbose":
        said = [f"{'first' if i == 0 else 'then'} we {'add' if line[1] == '+' else 'take away'} {line[2]}: " for i, line in enumerate(lines)]
        sums = [how + sum_ for how, sum_ in zip(said, sums, strict=True)]
        begin, end = f"<think> we start with {lines[0][0]}.", f" so the answer is {total}.{end}"
    return [f"{begin} {sums[0]}", *(f" {s}" for s in sums[1:]), end]


def _error(draw: np.random.Generator) -> int:
    """By how much a slip is off: mostly one or two, sometimes ten."""
    return int(draw.choice([-10, -2, -1, -1, 1, 1, 2, 10]))


@task
def chain_sum(
    terms: tuple[int, int] = (2, 4),
    digits: int = 1,
    style: Literal["terse", "verbose", "mixed"] = "mixed",
    noise: float = 0.5,
    reworded: float = 0.0,
    hinted: float = 0.0,
    again: float = 0.0,
    n_test: int = 400,
    seed: int = 0,
) -> Source:
    """Sums and differences of a few small numbers; the steps are written out before the answer. No total is below 0.

    terms     fewest and most numbers in an expression
    digits    digits of a number at most, 1 to 3; two or more ask much of a tiny model
    style     how demonstrations are worded: terse, verbose, or mixed (half of each)
    noise     share of the demonstrations with an arithmetic slip, which is gone on from
    reworded  share of the demonstrations that ask in the other wording, which every task carries as the tag `paraphrase`
    hinted    share of the demonstrations that are asked with the first steps told, but for those that give the answer away
    again     share of the demonstrations that are second attempts, behind a first one and the doubt of `rollout.two_attempts`; each of the
              two has a slip or not by itself, so that the form is shown and no correcting
    n_test    test expressions at most; a fifth of all expressions are kept for the test
    seed      of everything drawn
    """
    knobs = dict(locals())
    fewest, most = span("chain_sum", "terms", terms, 2, 12)
    if number("chain_sum", "digits", digits) not in (1, 2, 3):
        raise BadValue(f"task chain_sum: digits must be 1, 2 or 3, not {digits!r}")
    if style not in STYLES:
        raise BadValue(f"task chain_sum: style must be terse, verbose or mixed, not {style!r}")
    least("chain_sum", "n_test", n_test, 1)
    shares = [share("chain_sum", name, knobs[name]) for name in ("noise", "reworded", "hinted", "again")]
    writer = Writer(style, *shares, seed=seed)
    kinds, draw = tuple(range(fewest, most + 1)), partial(draw_sum, digits=digits)
    sums = Drawn("chain_sum", kinds, draw, lambda chain: chain.text, writer.ask, "terms", n_test, seed)
    numbers = " ".join(str(n) for n in range(min(most * 10**digits, 1000)))  # up to the largest total
    return Source(
        name="chain_sum",
        train=sums.train,
        test=sums.test,
        demos=partial(writer.demo, sums),
        words=lambda: sums.words(partial(writer.demo, sums), [numbers]),
        tags=THINKING,
        defaults={
            "max_tokens": (8 if style == "terse" else 18) * (most - 1) + 20,
            "by": "terms",
            "lr": 1e-4,
            "warm_steps": 1000,
            "warm_batch": 16,
            "warm_lr": 2e-3,
        },
        knobs=knobs,
        about={"test questions": len(sums.test), "largest number": 10**digits - 1, "share kept for the test": TESTED},
    )
