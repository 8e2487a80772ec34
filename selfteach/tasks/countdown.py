"""Countdown: make a target from some numbers. Worked out by trying: what is tried and fails stands in the demonstrations too."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ..core.address import generator
from ..core.errors import BadValue
from ..core.registry import task
from ..core.task import Source, Task
from ..reward.expression import makes
from .drawn import TESTED, THINKING, Drawn, solved
from .options import least, share, span

HIGHEST = 99  # of any value on the way, so that each is one token
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}


class Step(NamedTuple):
    """One combination of two values: `a op b = value`."""

    a: int
    op: str
    b: int
    value: int

    @property
    def text(self) -> str:
        return f"{self.a} {self.op} {self.b} = {self.value}."


class Try(NamedTuple):
    """All numbers combined to one value: the steps, and the expression that they come to."""

    steps: tuple[Step, ...]
    expression: str

    @property
    def value(self) -> int:
        return self.steps[-1].value


class Puzzle(NamedTuple):
    """Numbers, a target, and one way to make it."""

    numbers: tuple[int, ...]
    target: int
    way: Try

    @property
    def same(self) -> str:
        return f"{self.target} from {' '.join(map(str, sorted(self.numbers)))}"


class _Value(NamedTuple):
    number: int
    text: str
    op: str  # the loosest sign at its top; "" for a number


def combine(numbers: tuple[int, ...], draw: np.random.Generator) -> Try | None:
    """Random pairs combined by random signs until one value is left; None where that leaves the whole numbers from 1 to HIGHEST."""
    pool, steps = [_Value(n, str(n), "") for n in numbers], list[Step]()
    for one, other, sign in draw.random((len(numbers) - 1, 3)).tolist():
        i, j = int(one * len(pool)), int(other * (len(pool) - 1))
        j += j >= i
        a, b, op = pool[i], pool[j], "+-*/"[int(sign * 4)]
        value = {"+": a.number + b.number, "-": a.number - b.number, "*": a.number * b.number, "/": a.number // b.number}[op]
        if not 1 <= value <= HIGHEST or (op == "/" and (b.number == 1 or a.number % b.number)):
            return None
        steps.append(Step(a.number, op, b.number, value))
        pool = [v for k, v in enumerate(pool) if k not in (i, j)] + [_Value(value, _joined(a, op, b), op)]
    return Try(tuple(steps), pool[0].text)


def _joined(a: _Value, op: str, b: _Value) -> str:
    """`a op b` with the parentheses that it needs."""
    left = f"( {a.text} )" if a.op and _BINDS[a.op] < _BINDS[op] else a.text
    right = f"( {b.text} )" if b.op and (_BINDS[b.op] < _BINDS[op] or (_BINDS[b.op] == _BINDS[op] and op in "-/")) else b.text
    return f"{left} {op} {right}"


def draw_puzzle(draw: np.random.Generator, count: int, largest: int = 9) -> Puzzle:
    """A random puzzle of `count` numbers up to `largest`, made from its solution, so that there always is one."""
    while True:
        numbers = tuple(int(n) for n in draw.integers(1, largest + 1, count))
        way = combine(numbers, draw)
        if way is not None and way.value not in numbers:
            return Puzzle(numbers, way.value, way)


def attempt(puzzle: Puzzle, draw: np.random.Generator) -> Try | None:
    """A random combination of a puzzle's numbers that misses its target; None where it has none (99 and 98 make nothing but 1)."""
    found = (combine(puzzle.numbers, draw) for _ in range(300))
    return next((way for way in found if way is not None and way.value != puzzle.target), None)


def pieces(tries: list[Try], claim: str = "yes") -> list[str]:
    """A completion, step by step: each try ends with `no`, the last with `claim`, and its expression is the answer."""
    out: list[str] = []
    for n, way in enumerate(tries):
        verdict = claim if n == len(tries) - 1 else "no"
        out += [f" {s.text}" for s in way.steps[:-1]] + [f" {way.steps[-1].text} {verdict}."]
    return [f"<think>{out[0]}", *out[1:], f"</think><answer> {tries[-1].expression}</answer>"]


@dataclass(frozen=True, eq=False)
class Writer:
    """How puzzles are put and demonstrated."""

    tries: int = 1
    noise: float = 0.1
    reworded: float = 0.0
    seed: int = 0

    def ask(self, puzzle: Puzzle, name: str) -> Task:
        """The task of a puzzle. tags: numbers, category, difficulty (numbers to combine), hint (the first step), solution, steps, paraphrase."""
        listed = " ".join(map(str, puzzle.numbers))
        first = puzzle.way.steps[0]
        tags = {
            "numbers": len(puzzle.numbers),
            "category": f"{len(puzzle.numbers)} numbers",
            "difficulty": len(puzzle.numbers),
            "hint": first.text,
            "paraphrase": f"use {' '.join(map(str, puzzle.numbers[::-1]))} to get {puzzle.target}.\n",
            **solved(*pieces([puzzle.way])),
        }
        verifier = makes(target=puzzle.target, numbers=puzzle.numbers)
        return Task(name, f"make {puzzle.target} from {listed}.\n", (puzzle.way.expression,), tags=tags, verifier=verifier)

    def demo(self, drawn: Drawn[Puzzle], i: int) -> Task:
        """The i-th demonstration: up to `tries` misses, then the solution. tags: those of the task, and slip ("" if it is right).

        slips: early, a miss is taken for the solution; arithmetic, the last step is wrong by what is missing.
        """
        puzzle = drawn.pick("demo", i)
        task, draw = self.ask(puzzle, f"demo/{i}"), generator(self.seed, "write", i)
        tries = [miss for _ in range(int(draw.integers(self.tries + 1))) if (miss := attempt(puzzle, draw)) is not None]
        slip = ("early", "arithmetic")[int(draw.integers(2))] if draw.random() < self.noise else ""
        last = attempt(puzzle, draw) if slip else None
        if last is None:
            last, slip = puzzle.way, ""
        elif slip == "arithmetic":
            last = Try((*last.steps[:-1], last.steps[-1]._replace(value=puzzle.target)), last.expression)
        prompt = task.tags["paraphrase"] if draw.random() < self.reworded else task.prompt
        tags = {**task.tags, "kind": "demo", "slip": slip, "tries": len(tries)}
        return Task(task.id, prompt, task.answer, ("".join(pieces([*tries, last])),), tags, task.verifier)


@task
def countdown(
    numbers: tuple[int, int] = (2, 3),
    largest: int = 9,
    tries: int = 1,
    noise: float = 0.1,
    reworded: float = 0.0,
    n_test: int = 400,
    seed: int = 0,
) -> Source:
    """Make a target from some numbers by + - * / and parentheses, each number used at most once; any right expression is accepted.

    numbers   fewest and most numbers that are given, 2 to 6
    largest   largest number that is given, up to 99
    tries     misses that a demonstration shows before the solution, at most
    noise     share of the demonstrations that end in a wrong expression
    reworded  share of the demonstrations that ask in the other wording, which every task carries as the tag `paraphrase`
    n_test    test puzzles at most; a fifth of all puzzles are kept for the test
    seed      of everything drawn
    """
    knobs = dict(locals())
    fewest, most = span("countdown", "numbers", numbers, 2, 6)
    if least("countdown", "largest", largest, 5) > HIGHEST:
        raise BadValue(f"task countdown: largest must be at most {HIGHEST}, not {largest!r}")
    least("countdown", "tries", tries, 0)
    least("countdown", "n_test", n_test, 1)
    writer = Writer(tries, share("countdown", "noise", noise), share("countdown", "reworded", reworded), seed)
    draw = partial(draw_puzzle, largest=largest)
    puzzles = Drawn("countdown", tuple(range(fewest, most + 1)), draw, lambda p: p.same, writer.ask, "numbers", n_test, seed)
    demo = partial(writer.demo, puzzles)
    return Source(
        name="countdown",
        train=puzzles.train,
        test=puzzles.test,
        demos=demo,
        words=lambda: puzzles.words(demo, [" ".join(str(n) for n in range(HIGHEST + 1))]),
        tags=THINKING,
        defaults={
            "max_tokens": 9 * (most - 1) * (tries + 2) + 6 * most + 8,
            "by": "numbers",
            "lr": 1e-4,
            "warm_steps": 1200,
            "warm_batch": 32,
            "warm_lr": 3e-3,
        },
        knobs=knobs,
        about={"test puzzles": len(puzzles.test), "largest value on the way": HIGHEST, "share kept for the test": TESTED},
    )
