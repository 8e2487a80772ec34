"""Compositions of functions on short strings: single ones are demonstrated, some compositions are left for learning to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ..core.address import generator, key, uniform
from ..core.errors import BadValue, unknown
from ..core.registry import task
from ..core.task import Source, Task
from ..reward.answer import same_text
from .drawn import TESTED, THINKING, TRIES, Drawn, helped, solved
from .options import least, share, span

LETTERS = "abcdeghilmnorstu"
VOWELS = frozenset("aeiouAEIOU")
LONGEST = 12  # letters of any string on the way
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
    """Letters apart, so that each is a token of its own.

    >>> spaced("abc")
    'a b c'
    """
    return " ".join(word)


@dataclass(frozen=True, eq=False)
class Calls:
    """How calls are drawn, put and demonstrated."""

    functions: tuple[str, ...] = tuple(FUNCTIONS)
    length: tuple[int, int] = (3, 5)
    shown: int = 2
    held_out: float = 0.2
    noise: float = 0.3
    hinted: float = 0.0
    seed: int = 0

    def draw(self, draw: np.random.Generator, depth: int) -> Call:
        """A random call of `depth` functions; no string on the way is empty or longer than LONGEST. Raises BadValue where there is none."""
        for _ in range(TRIES):
            functions = tuple(self.functions[int(i)] for i in draw.integers(len(self.functions), size=depth))
            word = "".join(LETTERS[int(i)] for i in draw.integers(len(LETTERS), size=int(draw.integers(self.length[0], self.length[1] + 1))))
            call = Call(functions, word)
            if all(0 < len(v) <= LONGEST for v in call.values):
                return call
        raise BadValue(
            f"task strings: {depth} of {', '.join(self.functions)} leave a string empty or too long; take more functions or longer strings"
        )

    def apart(self, call: Call) -> bool:
        """True where one function stands directly in another, and this pair is held out."""
        return any(self.held(f, g) for f, g in zip(call.functions, call.functions[1:], strict=False))

    def held(self, inner: str, outer: str) -> bool:
        """True for the ordered pairs that neither training nor demonstrations compose."""
        return float(uniform(key(self.seed, "held out", inner, outer), 0)) < self.held_out

    def ask(self, call: Call, name: str) -> Task:
        """The task of a call. tags: depth, function (the outermost), category (both), difficulty, held_out, hint, solution, steps."""
        depth, values = len(call.functions), call.values
        tags = {
            "depth": depth,
            "function": call.functions[-1],
            "category": f"{call.functions[-1]}/{depth}",
            "difficulty": depth,
            "held_out": self.apart(call),
            "hint": f"{call.functions[0]} : {spaced(values[0])}.",
            **solved(*pieces(call.functions, values)),
        }
        return Task(name, f"what is {call.text} ?\n", (spaced(values[-1]),), tags=tags, verifier=same_text())

    def demo(self, drawn: Drawn[Call], i: int) -> Task:
        """The i-th demonstration. tags: those of the task, and slip ("" if it is right, else skipped, order or letter)."""
        call = drawn.pick("demo", i, kinds=tuple(k for k in drawn.kinds if k <= self.shown))
        task, draw = self.ask(call, f"demo/{i}"), generator(self.seed, "write", i)
        slip, text = "", task.tags["solution"]
        if draw.random() < self.noise:
            slip, text = self.wrong(call, draw)
        prompt = helped(task, task.prompt, self.hinted, draw)
        return Task(task.id, prompt, task.answer, (text,), {**task.tags, "kind": "demo", "slip": slip}, task.verifier)

    def wrong(self, call: Call, draw: np.random.Generator) -> tuple[str, str]:
        """(slip, completion): a function left out, the order turned round, or a letter wrong. One that would still be right is a wrong letter."""
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
    """A completion, step by step: each function with what it gives, and the answer."""
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
) -> Source:
    """What functions of functions of a string give: reverse ( upper ( a b c ) ). Skills shown singly are to be composed by learning.

    depth      fewest and most functions in a question, 1 to 4
    shown      most functions in a demonstration: deeper compositions are only asked
    functions  which: reverse, rotate (first letter to the end), swap (first and last), sort, upper, devowel, double, tail (all but the first)
    length     fewest and most letters of the string in a question
    held_out   share of the ordered pairs of functions that only test questions compose
    noise      share of the demonstrations that are done wrong
    hinted     share of the demonstrations that are asked with the first steps told, but for those that give the answer away
    n_test     test questions at most; a fifth of all questions are kept for the test, besides those that compose a held-out pair
    seed       of everything drawn
    """
    knobs = dict(locals())
    fewest, most = span("strings", "depth", depth, 1, 4)
    if least("strings", "shown", shown, 1) < fewest:
        raise BadValue(f"task strings: shown must be at least the fewest functions of depth ({fewest}), not {shown!r}")
    for name in functions:
        if name not in FUNCTIONS:
            raise unknown("function of strings", name, FUNCTIONS)
    if len(set(functions)) < 2:
        raise BadValue(f"task strings: functions must be two or more different ones, not {functions!r}")
    least("strings", "n_test", n_test, 1)
    calls = Calls(tuple(functions), span("strings", "length", length, 2, 8), shown, share("strings", "held_out", held_out), noise, hinted, seed)
    share("strings", "noise", noise)
    share("strings", "hinted", hinted)
    drawn = Drawn("strings", tuple(range(fewest, most + 1)), calls.draw, lambda c: c.text, calls.ask, "deep", n_test, seed, calls.apart)
    demo = partial(calls.demo, drawn)
    return Source(
        name="strings",
        train=drawn.train,
        test=drawn.test,
        demos=demo,
        words=lambda: drawn.words(demo, [spaced(LETTERS), spaced(LETTERS.upper()), *functions]),
        tags=THINKING,
        defaults={
            "max_tokens": most * (LONGEST + 3) + LONGEST + 8,
            "by": "depth",
            "lr": 1e-4,
            "warm_steps": 1000,
            "warm_batch": 16,
            "warm_lr": 2e-3,
        },
        knobs=knobs,
        about={
            "test questions": len(drawn.test),
            "categories": [f"{f}/{d}" for d in drawn.kinds for f in functions],
            "pairs held out": sum(calls.held(f, g) for f in functions for g in functions),
            "share kept for the test": TESTED,
        },
    )
