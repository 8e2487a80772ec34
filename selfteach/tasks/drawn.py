"""Questions that are drawn: one generator for all, which splits them by what they ask, so that training and test share none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, Generic, TypeVar

import numpy as np

from ..core.address import generator, key, uniform
from ..core.errors import BadValue
from ..core.task import Task
from ..curriculum.hints import guidance

T = TypeVar("T")

THINKING = ("<think>", "</think>", "<answer>", "</answer>")
TESTED = 0.2  # share of all questions that only the test asks
WORDED = 3000  # demonstrations that the tokenizer sees
TRIES = 2000  # draws before a kind of question is given up


@dataclass(frozen=True, eq=False)
class Drawn(Generic[T]):
    """Questions of some kinds, each kind asked as often as the others. All draws are by address, so any training task can be had alone.

    draw(draw, kind)  a random question of a kind
    same(question)    what the split goes by: one text for questions that ask the same
    ask(question, id) the task
    unit              what a kind counts, for the ids of test tasks: `terms`
    apart(question)   True for questions that are only tested, whatever the split says
    """

    name: str
    kinds: tuple[Any, ...]
    draw: Callable[[np.random.Generator, Any], T]
    same: Callable[[T], str]
    ask: Callable[[T, str], Task]
    unit: str
    n_test: int = 400
    seed: int = 0
    apart: Callable[[T], bool] = lambda question: False

    def tested(self, question: T) -> bool:
        """True for the questions that belong to the test: fixed by the question and the seed alone."""
        return float(uniform(key(self.seed, "split", self.same(question)), 0)) < TESTED

    def pick(self, *address: object, kinds: tuple[Any, ...] = ()) -> T:
        """A training question at an address. Raises BadValue where none is found."""
        draw = generator(self.seed, *address)
        kinds = kinds or self.kinds
        kind = kinds[int(draw.integers(len(kinds)))]
        for _ in range(TRIES):
            question = self.draw(draw, kind)
            if not self.tested(question) and not self.apart(question):
                return question
        raise BadValue(f"task {self.name}: no training question of {kind} {self.unit} is found; make its options wider")

    def train(self, i: int) -> Task:
        """The i-th training task."""
        return self.ask(self.pick("train", i), f"train/{i}")

    @cached_property
    def test(self) -> tuple[Task, ...]:
        """Test questions without repeats, equally many of each kind as far as there are so many, in turns."""
        rows: list[list[Task]] = []
        for rank, kind in enumerate(self.kinds):
            want = self.n_test // len(self.kinds) + (rank < self.n_test % len(self.kinds))
            rows.append([])
            draw, seen = generator(self.seed, "test", kind), set[str]()
            for _ in range(20 * want + 200):
                question = self.draw(draw, kind)
                if len(seen) < want and self.same(question) not in seen and (self.tested(question) or self.apart(question)):
                    seen.add(self.same(question))
                    rows[-1].append(self.ask(question, f"test/{kind}-{self.unit}/{len(seen)}"))
        return tuple(t for turn in zip_longest(*rows) for t in turn if t is not None)

    def words(self, demo: Callable[[int], Task], first: Iterable[str]) -> Iterator[str]:
        """Text for the tokenizer: what a task says first, the test questions, and a stretch of demonstrations."""
        yield from first
        for t in self.test:
            yield t.prompt
        for i in range(WORDED):
            item = demo(i)
            yield item.prompt + item.data[0]


def helped(task: Task, prompt: str, share: float, draw: np.random.Generator) -> str:
    """A demonstration's prompt, in this share of the cases with the task's guidance behind it, so that a model learns what such help is."""
    return prompt + guidance(task) if share and draw.random() < share else prompt


def solved(*pieces: str) -> dict[str, Any]:
    """Tags of a worked-out solution: `solution`, the whole right completion, and `steps`, the pieces that it is cut into."""
    return {"solution": "".join(pieces), "steps": pieces}
