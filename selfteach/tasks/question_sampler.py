"""Sampling of random questions, split by what they ask, so that training and test share none."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, zip_longest
from typing import Any, Generic, TypeVar

import numpy as np

from ..core.errors import BadValue
from ..core.random_keys import generator, key, uniform_at
from ..core.task import Task, TaskSource
from ..curriculum.hints import guidance

T = TypeVar("T")

THINKING = ("<think>", "</think>", "<answer>", "</answer>")
TEST_SHARE = 0.2  # share of all questions that only the test asks
TOKENIZER_DEMOS = 3000  # demonstrations that the tokenizer sees
MAX_DRAWS = 2000  # before a kind of question is given up


@dataclass(frozen=True, eq=False)
class QuestionSampler(Generic[T]):
    """Questions of some kinds, each kind equally often. Draws are by RNG key: any training task can be made alone.

    draw(draw, kind)       a random question of a kind
    identity(question)     what the split goes by: one text for questions that ask the same
    to_task(question, id)  the task
    unit                   what a kind counts, for the ids of test tasks: `terms`
    is_held_out(question)  True for questions that are only for the test, whatever the split
    """

    name: str
    kinds: tuple[Any, ...]
    draw: Callable[[np.random.Generator, Any], T]
    identity: Callable[[T], str]
    to_task: Callable[[T, str], Task]
    unit: str
    n_test: int = 400
    seed: int = 0
    is_held_out: Callable[[T], bool] = lambda question: False

    def is_test(self, question: T) -> bool:
        """True for the questions of the test split: a function of the question and the seed alone."""
        return self._is_test_identity(self.identity(question))

    def _is_test_identity(self, identity: str) -> bool:
        return uniform_at(key(self.seed, "split", identity), 0) < TEST_SHARE

    def sample(self, *rng_key: object, kinds: tuple[Any, ...] = ()) -> T:
        """The training question of an RNG key. Raises BadValue where none is found."""
        draw = generator(self.seed, *rng_key)
        kinds = kinds or self.kinds
        kind = kinds[int(draw.integers(len(kinds)))]
        for _ in range(MAX_DRAWS):
            question = self.draw(draw, kind)
            if not self.is_test(question) and not self.is_held_out(question):
                return question
        raise BadValue(
            f"task {self.name}: no training question of {kind} {self.unit} was found; make its options wider"
        )

    def train(self, i: int) -> Task:
        """The i-th training task."""
        return self.to_task(self.sample("train", i), f"train/{i}")

    @cached_property
    def test(self) -> tuple[Task, ...]:
        """Test questions without repeats, kinds in turns, equally many of each as far as there are so many."""
        rows: list[list[Task]] = []
        for rank, kind in enumerate(self.kinds):
            want = self.n_test // len(self.kinds) + (rank < self.n_test % len(self.kinds))
            rows.append([])
            draw, met = generator(self.seed, "test", kind), set[str]()
            for _ in range(20 * want + 200):
                if len(rows[-1]) == want:
                    break
                question = self.draw(draw, kind)
                identity = self.identity(question)
                if identity in met:
                    continue
                met.add(identity)
                if self._is_test_identity(identity) or self.is_held_out(question):
                    rows[-1].append(self.to_task(question, f"test/{kind}-{self.unit}/{len(rows[-1]) + 1}"))
        return tuple(t for turn in zip_longest(*rows) for t in turn if t is not None)

    def words(self, demo: Callable[[int], Task], first: Iterable[str]) -> Iterator[str]:
        """Text for the tokenizer: `first`, the test prompts, and TOKENIZER_DEMOS demonstrations."""
        yield from first
        for t in self.test:
            yield t.prompt
        for i in range(TOKENIZER_DEMOS):
            item = demo(i)
            yield item.prompt + item.data[0]

    def source(
        self,
        demos: Callable[[int], Task],
        *,
        defaults: Mapping[str, Any],
        written: Callable[[int], Task] | None = None,
        first: Iterable[str] = (),
        about: Mapping[str, Any] = {},
        **more: Any,
    ) -> TaskSource:
        """The task that asks these questions.

        demos           its demonstrations
        defaults        settings that it suggests, over those that all such tasks do: figures are shown apart by `unit`,
                        a learning rate, the batch of a warm start and its rate
        written, first  what its tokenizer is made from, as in `words`: other demonstrations than its own, where they
                        depend on what the tokenizer is not to depend on; what comes first
        about           figures of the data, besides how many test questions there are
        more            other fields of the TaskSource, or another `train` or `tags` than these tasks have
        """
        given: dict[str, Any] = {"train": self.train, "tags": THINKING, **more}
        return TaskSource(
            name=self.name,
            test=self.test,
            demos=demos,
            words=lambda: self.words(written or demos, first),
            defaults={"by": self.unit, "lr": 3e-4, "warm_batch": 32, "warm_lr": 2e-3, **defaults},
            about={"test questions": len(self.test), **about, "share kept for the test": TEST_SHARE},
            **given,
        )


def pick(shares: Mapping[str, float], at: float) -> str:
    """The name at a place in [0, 1) of shares laid end to end.

    >>> pick({"all": 0.5, "odd": 0.5}, 0.7)
    'odd'
    """
    bounds = list(accumulate(shares.values()))
    return list(shares)[min(bisect_right(bounds, at), len(bounds) - 1)]


def with_guidance(task: Task, prompt: str, share: float, draw: np.random.Generator) -> str:
    """A demonstration's prompt, for a share of the draws with the task's guidance after it.

    So that a model learns what such guidance is.
    """
    return prompt + guidance(task) if share and draw.random() < share else prompt


def solution_tags(*pieces: str) -> dict[str, Any]:
    """Tags of a solution: `solution`, the whole right completion, and `steps`, its pieces."""
    return {"solution": "".join(pieces), "steps": pieces}
