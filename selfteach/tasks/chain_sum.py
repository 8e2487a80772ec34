"""Arithmetic: chains of additions and subtractions of small numbers, with worked steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from ..core.blocks import block
from ..core.errors import BadValue
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..rollout.attempts import retry_prompt
from .options import check_at_least, check_number, check_range, check_share
from .question_sampler import QuestionSampler, solution_tags, with_guidance

STYLES = ("terse", "verbose", "mixed")


class Sum(NamedTuple):
    """A chain: its first number, then (sign, number) pairs. No total on the way is below 0."""

    first: int
    rest: tuple[tuple[int, int], ...]

    @property
    def text(self) -> str:
        """The chain as an expression: `3 + 4 - 2`."""
        return " ".join([str(self.first), *(f"{'+' if sign > 0 else '-'} {n}" for sign, n in self.rest)])

    @property
    def in_words(self) -> str:
        """The chain in words: the other wording of the question."""
        words = ", ".join(f"{'add' if sign > 0 else 'take away'} {n}" for sign, n in self.rest)
        return f"start with {self.first}, {words}"

    @property
    def total(self) -> int:
        """The value of the chain."""
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
class SumWriter:
    """Tasks and demonstrations of sums."""

    style: Literal["terse", "verbose", "mixed"] = "mixed"
    noise: float = 0.5
    reworded: float = 0.0
    hinted: float = 0.0
    again: float = 0.0
    seed: int = 0

    def to_task(self, chain: Sum, name: str) -> Task:
        """The task of a chain.

        tags  terms, category, difficulty (steps), hint (the first step), solution, steps, paraphrase
        """
        first = steps(chain)[0]
        tags = {
            "terms": len(chain.rest) + 1,
            "category": f"{len(chain.rest) + 1} terms",
            "difficulty": len(chain.rest),
            "hint": f"{first[0]} {first[1]} {first[2]} = {first[3]}.",
            "paraphrase": f"{chain.in_words}: what is left?\n",
            **solution_tags(*pieces(steps(chain), "verbose" if self.style == "verbose" else "terse")),
        }
        judges = {"step": correct_step()}
        return Task(name, f"compute: {chain.text} =\n", (str(chain.total),), tags=tags, judges=judges)

    def demo(self, questions: QuestionSampler[Sum], i: int) -> Task:
        """The i-th demonstration; tags: those of the task, style, and slip ("" if it is right)."""
        chain = questions.sample("demo", i)
        task, draw = self.to_task(chain, f"demo/{i}"), generator(self.seed, "write", i)
        style = STYLES[int(draw.integers(2))] if self.style == "mixed" else self.style
        lines, slip = self._attempt(chain, draw)
        prompt = task.tags["paraphrase"] if draw.random() < self.reworded else task.prompt
        prompt = with_guidance(task, prompt, self.hinted, draw)
        if self.again and draw.random() < self.again:
            first, _ = self._attempt(chain, draw)
            prompt += "".join(pieces(first, style)) + retry_prompt(task.prompt)
        return Task(
            task.id,
            prompt,
            task.answer,
            ("".join(pieces(lines, style)),),
            {**task.tags, "kind": "demo", "style": style, "slip": slip},
        )

    def _attempt(self, chain: Sum, draw: np.random.Generator) -> tuple[list[tuple[int, str, int, int]], str]:
        """(steps of one attempt, the kind of slip in them or "")."""
        if draw.random() >= self.noise:
            return steps(chain), ""
        return steps(chain, slip_at=int(draw.integers(len(chain.rest))), by=_error(draw)), "arithmetic"


@block
def correct_step(*, step: str) -> bool | None:
    """Whether the last sum or difference in a step of a solution is right; None without one.

    >>> correct_step(step=" then we add 4: 3 + 4 = 8."), correct_step(step=" so the answer is 8.")
    (False, None)
    """
    sums = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)(?!\d)", step)
    if not sums:
        return None
    a, sign, b, total = sums[-1]
    return int(a) + (int(b) if sign == "+" else -int(b)) == int(total)


def steps(chain: Sum, slip_at: int = -1, by: int = 0) -> list[tuple[int, str, int, int]]:
    """(total so far, sign, number, new total) of each step.

    slip_at, by  from this step on totals are off by `by`; by -`by` if one would fall below 0
    """
    totals = [chain.first]
    for sign, n in chain.rest:
        totals.append(totals[-1] + sign * n)
    if slip_at >= 0:
        error = by if min(totals[slip_at + 1 :]) + by >= 0 else -by
        totals[slip_at + 1 :] = [t + error for t in totals[slip_at + 1 :]]
    return [(totals[i], "+" if sign > 0 else "-", n, totals[i + 1]) for i, (sign, n) in enumerate(chain.rest)]


def pieces(lines: list[tuple[int, str, int, int]], style: str) -> list[str]:
    """The pieces of a completion: `12 + 7 = 19. 19 - 3 = 16.` and the answer; verbose with words around the steps."""
    # The spaces make a number the same token after a tag as in the middle of a line.
    sums, total = [f"{a} {op} {n} = {b}." for a, op, n, b in lines], lines[-1][3]
    begin, end = "<think>", f"</think><answer> {total}</answer>"
    if style == "verbose":
        wordings = [
            f"{'first' if i == 0 else 'then'} we {'add' if line[1] == '+' else 'take away'} {line[2]}: "
            for i, line in enumerate(lines)
        ]
        sums = [wording + sum_ for wording, sum_ in zip(wordings, sums, strict=True)]
        begin, end = f"<think> we start with {lines[0][0]}.", f" so the answer is {total}.{end}"
    return [f"{begin} {sums[0]}", *(f" {s}" for s in sums[1:]), end]


def _error(draw: np.random.Generator) -> int:
    """The error of a slip: mostly one or two, sometimes ten."""
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
) -> TaskSource:
    """Sums and differences of a few small numbers, with steps before the answer; no total is below 0.

    terms     fewest and most numbers in an expression
    digits    digits of a number at most, 1 to 3; two or more ask much of a tiny model
    style     how demonstrations are worded: terse, verbose, or mixed (half of each)
    noise     share of the demonstrations with an arithmetic slip, whose error is carried on
    reworded  share of the demonstrations in the other wording, which every task has as the tag `paraphrase`
    hinted    share of the demonstrations whose prompt gives the first steps, but for those that give the answer away
    again     share of the demonstrations that are second attempts, behind a first one and the retry prompt of the
              program `two_attempts`; each of the two has a slip or not independently, so that the form is shown and
              correcting is not
    n_test    test expressions at most; a fifth of all expressions are kept for the test
    seed      of every random draw
    """
    task_options = dict(locals())
    fewest, most = check_range("chain_sum", "terms", terms, 2, 12)
    if check_number("chain_sum", "digits", digits) not in (1, 2, 3):
        raise BadValue(f"task chain_sum: digits must be 1, 2 or 3, not {digits!r}")
    if style not in STYLES:
        raise BadValue(f"task chain_sum: style must be terse, verbose or mixed, not {style!r}")
    check_at_least("chain_sum", "n_test", n_test, 1)
    shares = [check_share("chain_sum", name, task_options[name]) for name in ("noise", "reworded", "hinted", "again")]
    writer = SumWriter(style, *shares, seed=seed)
    kinds, draw = tuple(range(fewest, most + 1)), partial(draw_sum, digits=digits)
    sums = QuestionSampler("chain_sum", kinds, draw, lambda chain: chain.text, writer.to_task, "terms", n_test, seed)
    numbers = " ".join(str(n) for n in range(min(most * 10**digits, 1000)))  # up to the largest total
    return sums.source(
        partial(writer.demo, sums),
        first=[numbers],
        defaults={
            "max_tokens": (8 if style == "terse" else 18) * (most - 1) + 20,
            "lr": 1e-4,
            "warm_steps": 1000,
            "warm_batch": 16,
        },
        about={"largest number": 10**digits - 1},
        task_options=task_options,
    )
