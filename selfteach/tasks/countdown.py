"""Countdown: make a target from some numbers.

Demonstrations search by trial: failed tries are part of them too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ..core.errors import BadValue
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..reward.expression import makes
from .chain_sum import correct_step
from .options import check_at_least, check_range, check_share
from .question_sampler import QuestionSampler, solution_tags

HIGHEST = 99  # of any intermediate value, so that each is one token
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


class Step(NamedTuple):
    """One combination of two values: `a op b = value`."""

    a: int
    op: str
    b: int
    value: int

    @property
    def text(self) -> str:
        """The step as an equation."""
        return f"{self.a} {self.op} {self.b} = {self.value}."


class Try(NamedTuple):
    """All numbers combined to one value: the steps, and the expression that they come to."""

    steps: tuple[Step, ...]
    expression: str

    @property
    def value(self) -> int:
        """The value of the last step."""
        return self.steps[-1].value


class Puzzle(NamedTuple):
    """Numbers, a target, and one solution."""

    numbers: tuple[int, ...]
    target: int
    solution: Try

    @property
    def identity(self) -> str:
        """One text for puzzles of the same target and numbers."""
        return f"{self.target} from {' '.join(map(str, sorted(self.numbers)))}"


class _Value(NamedTuple):
    number: int
    text: str
    op: str  # the outermost operator; "" for a number


def combine(numbers: tuple[int, ...], draw: np.random.Generator) -> Try | None:
    """Random pairs combined by random operators until one value is left.

    None where an intermediate value is not a whole number from 1 to HIGHEST.
    """
    pool, steps = [_Value(n, str(n), "") for n in numbers], list[Step]()
    for one, other, sign in draw.random((len(numbers) - 1, 3)).tolist():
        i, j = int(one * len(pool)), int(other * (len(pool) - 1))
        j += j >= i
        a, b, op = pool[i], pool[j], "+-*/"[int(sign * 4)]
        value = {
            "+": a.number + b.number,
            "-": a.number - b.number,
            "*": a.number * b.number,
            "/": a.number // b.number,
        }[op]
        if not 1 <= value <= HIGHEST or (op == "/" and (b.number == 1 or a.number % b.number)):
            return None
        steps.append(Step(a.number, op, b.number, value))
        pool = [v for k, v in enumerate(pool) if k not in (i, j)] + [_Value(value, _joined(a, op, b), op)]
    return Try(tuple(steps), pool[0].text)


def _joined(a: _Value, op: str, b: _Value) -> str:
    """`a op b` with the parentheses that it needs."""
    left = f"( {a.text} )" if a.op and _PRECEDENCE[a.op] < _PRECEDENCE[op] else a.text
    right = (
        f"( {b.text} )"
        if b.op and (_PRECEDENCE[b.op] < _PRECEDENCE[op] or (_PRECEDENCE[b.op] == _PRECEDENCE[op] and op in "-/"))
        else b.text
    )
    return f"{left} {op} {right}"


def draw_puzzle(draw: np.random.Generator, count: int, largest: int = 9) -> Puzzle:
    """A random puzzle of `count` numbers up to `largest`, made from its solution."""
    while True:
        numbers = tuple(int(n) for n in draw.integers(1, largest + 1, count))
        solution = combine(numbers, draw)
        if solution is not None and solution.value not in numbers:
            return Puzzle(numbers, solution.value, solution)


def attempt(puzzle: Puzzle, draw: np.random.Generator) -> Try | None:
    """A random combination of a puzzle's numbers that misses its target; None where it has none (99 and 98 give 1)."""
    tries = (combine(puzzle.numbers, draw) for _ in range(300))
    return next((t for t in tries if t is not None and t.value != puzzle.target), None)


def pieces(tries: list[Try], claim: str = "yes") -> list[str]:
    """The pieces of a completion: each try ends with `no`, the last with `claim`, and its expression is the answer."""
    out: list[str] = []
    for n, one in enumerate(tries):
        verdict = claim if n == len(tries) - 1 else "no"
        out += [f" {s.text}" for s in one.steps[:-1]] + [f" {one.steps[-1].text} {verdict}."]
    return [f"<think>{out[0]}", *out[1:], f"</think><answer> {tries[-1].expression}</answer>"]


@dataclass(frozen=True, eq=False)
class PuzzleWriter:
    """Tasks and demonstrations of puzzles."""

    tries: int = 1
    noise: float = 0.1
    reworded: float = 0.0
    seed: int = 0

    def to_task(self, puzzle: Puzzle, name: str) -> Task:
        """The task of a puzzle.

        tags  numbers, category, difficulty (numbers to combine), hint (the first step), solution, steps, paraphrase
        """
        listed = " ".join(map(str, puzzle.numbers))
        first = puzzle.solution.steps[0]
        tags = {
            "numbers": len(puzzle.numbers),
            "category": f"{len(puzzle.numbers)} numbers",
            "difficulty": len(puzzle.numbers),
            "hint": first.text,
            "paraphrase": f"use {' '.join(map(str, puzzle.numbers[::-1]))} to get {puzzle.target}.\n",
            **solution_tags(*pieces([puzzle.solution])),
        }
        verifier = makes(target=puzzle.target, numbers=puzzle.numbers)
        return Task(
            name,
            f"make {puzzle.target} from {listed}.\n",
            (puzzle.solution.expression,),
            tags=tags,
            verifier=verifier,
            judges={"step": correct_step()},
        )

    def demo(self, questions: QuestionSampler[Puzzle], i: int) -> Task:
        """The i-th demonstration: up to `tries` misses, then the solution.

        tags  those of the task; slip: "" if it is right, early (a miss is taken for the solution) or arithmetic (the
              last step is given the target's value); tries
        """
        puzzle = questions.sample("demo", i)
        task, draw = self.to_task(puzzle, f"demo/{i}"), generator(self.seed, "write", i)
        tries = [miss for _ in range(int(draw.integers(self.tries + 1))) if (miss := attempt(puzzle, draw)) is not None]
        slip = ("early", "arithmetic")[int(draw.integers(2))] if draw.random() < self.noise else ""
        last = attempt(puzzle, draw) if slip else None
        if last is None:
            last, slip = puzzle.solution, ""
        elif slip == "arithmetic":
            last = Try((*last.steps[:-1], last.steps[-1]._replace(value=puzzle.target)), last.expression)
        prompt = task.tags["paraphrase"] if draw.random() < self.reworded else task.prompt
        tags = {**task.tags, "kind": "demo", "slip": slip, "tries": len(tries)}
        return replace(task, prompt=prompt, data=("".join(pieces([*tries, last])),), tags=tags)


@task
def countdown(
    numbers: tuple[int, int] = (2, 3),
    largest: int = 9,
    tries: int = 1,
    noise: float = 0.1,
    reworded: float = 0.0,
    n_test: int = 400,
    seed: int = 0,
) -> TaskSource:
    """Make a target from some numbers by + - * / and parentheses, using each at most once; any solution is accepted.

    numbers   fewest and most numbers that are given, 2 to 6
    largest   largest number that is given, up to 99
    tries     misses that a demonstration shows before the solution, at most
    noise     share of the demonstrations that end in a wrong expression
    reworded  share of the demonstrations in the other wording, which every task has as the tag `paraphrase`
    n_test    test puzzles at most; a fifth of all puzzles are kept for the test
    seed      of every random draw
    """
    task_options = dict(locals())
    fewest, most = check_range("countdown", "numbers", numbers, 2, 6)
    if check_at_least("countdown", "largest", largest, 5) > HIGHEST:
        raise BadValue(f"task countdown: largest must be at most {HIGHEST}, not {largest!r}")
    check_at_least("countdown", "tries", tries, 0)
    check_at_least("countdown", "n_test", n_test, 1)
    writer = PuzzleWriter(
        tries, check_share("countdown", "noise", noise), check_share("countdown", "reworded", reworded), seed
    )
    draw = partial(draw_puzzle, largest=largest)
    puzzles = QuestionSampler(
        "countdown", tuple(range(fewest, most + 1)), draw, lambda p: p.identity, writer.to_task, "numbers", n_test, seed
    )
    return puzzles.source(
        partial(writer.demo, puzzles),
        first=[" ".join(str(n) for n in range(HIGHEST + 1))],
        defaults={
            "max_tokens": 9 * (most - 1) * (tries + 2) + 6 * most + 8,
            "lr": 1e-4,
            "warm_steps": 1200,
            "warm_lr": 3e-3,
        },
        about={"largest value on the way": HIGHEST},
        task_options=task_options,
    )
