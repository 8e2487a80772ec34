"""Compositions of functions on short strings; demonstrations hold only the shorter ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ..core.errors import BadValue
from ..core.random_keys import generator, key, uniform_at
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..reward.answer import same_text
from .options import check_at_least, check_names, check_range, check_share
from .question_sampler import MAX_DRAWS, QuestionSampler, solution_tags, with_guidance

LETTERS = "abcdeghilmnorstu"
VOWELS = frozenset("aeiouAEIOU")
LONGEST = 12  # letters of any intermediate string
FUNCTIONS: dict[str, Callable[[str], str]] = {
    "reverse": lambda s: s[::-1],
    "rotate": lambda s: s[1:] + s[:1],
    "swap": lambda s: s[-1:] + s[1:-1] + s[:1] if len(s) > 1 else s,
    "sort": lambda s: "".join(sorted(s, key=lambda c: (c.lower(), c))),
    "upper": str.upper,
    "devowel": lambda s: "".join(c for c in s if c not in VOWELS),
    "double": lambda s: s + s,
    "tail": lambda s: s[1:],
}


class Call(NamedTuple):
    """Functions on a string, the innermost (which is applied first) first."""

    functions: tuple[str, ...]
    word: str

    @property
    def text(self) -> str:
        """The call as an expression: `reverse ( upper ( a b c ) )`."""
        text = spaced(self.word)
        for f in self.functions:
            text = f"{f} ( {text} )"
        return text

    @property
    def values(self) -> list[str]:
        """The string after each function."""
        out, word = list[str](), self.word
        for f in self.functions:
            word = FUNCTIONS[f](word)
            out.append(word)
        return out


def spaced(word: str) -> str:
    """The letters with spaces between, so that each is a token of its own.

    >>> spaced("abc")
    'a b c'
    """
    return " ".join(word)


@dataclass(frozen=True, eq=False)
class Calls:
    """Sampling, tasks and demonstrations of calls."""

    functions: tuple[str, ...] = tuple(FUNCTIONS)
    length: tuple[int, int] = (3, 5)
    shown: int = 2
    held_out: float = 0.2
    noise: float = 0.3
    hinted: float = 0.0
    seed: int = 0

    def draw(self, draw: np.random.Generator, depth: int) -> Call:
        """A random call of `depth` functions without an intermediate string that is empty or longer than LONGEST.

        Raises BadValue where none was found.
        """
        for _ in range(MAX_DRAWS):
            functions = tuple(self.functions[int(i)] for i in draw.integers(len(self.functions), size=depth))
            word = "".join(
                LETTERS[int(i)]
                for i in draw.integers(len(LETTERS), size=int(draw.integers(self.length[0], self.length[1] + 1)))
            )
            call = Call(functions, word)
            if all(0 < len(v) <= LONGEST for v in call.values):
                return call
        raise BadValue(
            f"task strings: {depth} of {', '.join(self.functions)} leave a string empty or too long; take more "
            "functions or longer strings"
        )

    def is_held_out(self, call: Call) -> bool:
        """True where some function is applied to another's result and this pair is held out."""
        return any(self.is_pair_held_out(f, g) for f, g in zip(call.functions, call.functions[1:], strict=False))

    def is_pair_held_out(self, inner: str, outer: str) -> bool:
        """True for the ordered pairs that only test questions compose."""
        return uniform_at(key(self.seed, "held out", inner, outer), 0) < self.held_out

    def to_task(self, call: Call, name: str) -> Task:
        """The task of a call.

        tags  depth, function (the outermost), category (both), difficulty, held_out, hint, solution, steps
        """
        depth, values = len(call.functions), call.values
        tags = {
            "depth": depth,
            "function": call.functions[-1],
            "category": f"{call.functions[-1]}/{depth}",
            "difficulty": depth,
            "held_out": self.is_held_out(call),
            "hint": f"{call.functions[0]} : {spaced(values[0])}.",
            **solution_tags(*pieces(call.functions, values)),
        }
        return Task(name, f"what is {call.text} ?\n", (spaced(values[-1]),), tags=tags, verifier=same_text())

    def demo(self, questions: QuestionSampler[Call], i: int) -> Task:
        """The i-th demonstration; tags: those of the task, and slip ("" if right, else skipped, order or letter)."""
        call = questions.sample("demo", i, kinds=tuple(k for k in questions.kinds if k <= self.shown))
        task, draw = self.to_task(call, f"demo/{i}"), generator(self.seed, "write", i)
        slip, text = "", task.tags["solution"]
        if draw.random() < self.noise:
            slip, text = self.with_slip(call, draw)
        prompt = with_guidance(task, task.prompt, self.hinted, draw)
        return Task(task.id, prompt, task.answer, (text,), {**task.tags, "kind": "demo", "slip": slip}, task.verifier)

    def with_slip(self, call: Call, draw: np.random.Generator) -> tuple[str, str]:
        """(slip, completion): the first function skipped, the order reversed, or one letter of the answer wrong.

        One that would still be right becomes a wrong letter.
        """
        slip = ("skipped", "order", "letter")[int(draw.integers(3))]
        other = {"skipped": call.functions[1:], "order": call.functions[::-1]}.get(slip, ())
        values = call._replace(functions=other).values
        if other and values[-1] != call.values[-1] and all(0 < len(v) <= LONGEST for v in values):
            return slip, "".join(pieces(other, values))
        values = call.values
        at = int(draw.integers(len(values[-1])))
        letters = [c for c in LETTERS if c != values[-1][at].lower()]
        letter = letters[int(draw.integers(len(letters)))]
        values[-1] = values[-1][:at] + letter + values[-1][at + 1 :]
        return "letter", "".join(pieces(call.functions, values))


def pieces(functions: tuple[str, ...], values: list[str]) -> list[str]:
    """The pieces of a completion: each function with its result, and the answer."""
    lines = [f" {f} : {spaced(v)}." for f, v in zip(functions, values, strict=True)]
    return [f"<think>{lines[0]}", *lines[1:], f"</think><answer> {spaced(values[-1])}</answer>"]


@task
def strings(
    depth: tuple[int, int] = (1, 3),
    shown: int = 2,
    functions: tuple[str, ...] = tuple(FUNCTIONS),
    length: tuple[int, int] = (3, 5),
    held_out: float = 0.2,
    noise: float = 0.3,
    hinted: float = 0.0,
    n_test: int = 400,
    seed: int = 0,
) -> TaskSource:
    """The result of nested functions of a string: reverse ( upper ( a b c ) ). Deeper nestings are not demonstrated.

    depth      fewest and most functions in a question, 1 to 4
    shown      most functions in a demonstration: deeper compositions are only asked
    functions  which: reverse, rotate (first letter to the end), swap (first and last), sort, upper, devowel, double,
               tail (all but the first)
    length     fewest and most letters of the string in a question
    held_out   share of the ordered pairs of functions that only test questions compose
    noise      share of the demonstrations that are done wrong
    hinted     share of the demonstrations whose prompt gives the first steps, but for those that give the answer away
    n_test     test questions at most; a fifth of all questions are kept for the test, besides those that compose a
               held-out pair
    seed       of every random draw
    """
    task_options = dict(locals())
    fewest, most = check_range("strings", "depth", depth, 1, 4)
    if check_at_least("strings", "shown", shown, 1) < fewest:
        raise BadValue(f"task strings: shown must be at least the fewest functions of depth ({fewest}), not {shown!r}")
    if len(set(check_names("strings", "functions", functions, FUNCTIONS, "function of strings"))) < 2:
        raise BadValue(f"task strings: functions must be two or more different ones, not {functions!r}")
    check_at_least("strings", "n_test", n_test, 1)
    calls = Calls(
        tuple(functions),
        check_range("strings", "length", length, 2, 8),
        shown,
        check_share("strings", "held_out", held_out),
        noise,
        hinted,
        seed,
    )
    check_share("strings", "noise", noise)
    check_share("strings", "hinted", hinted)
    questions = QuestionSampler(
        "strings",
        tuple(range(fewest, most + 1)),
        calls.draw,
        lambda c: c.text,
        calls.to_task,
        "deep",
        n_test,
        seed,
        calls.is_held_out,
    )
    return questions.source(
        partial(calls.demo, questions),
        first=[spaced(LETTERS), spaced(LETTERS.upper()), *functions],
        defaults={
            "max_tokens": most * (LONGEST + 3) + LONGEST + 8,
            "by": "depth",
            "lr": 1e-4,
            "warm_steps": 1000,
            "warm_batch": 16,
        },
        about={
            "categories": [f"{f}/{d}" for d in questions.kinds for f in functions],
            "pairs held out": sum(calls.is_pair_held_out(f, g) for f in functions for g in functions),
        },
        task_options=task_options,
    )
