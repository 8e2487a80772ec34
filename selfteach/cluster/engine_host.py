"""A rollout worker's own part: the built-in engine, asked by batches of requests and one long question for answers."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..core.errors import EngineLost, SelfteachError, describe
from ..core.task import Sampling
from ..engine.builtin import BuiltinEngine
from ..engine.equal_length_batching import EqualLengthEngine
from ..engine.recipe import EngineRecipe
from .stored_weights import unpacked

MEMORY = ("can't allocate memory", "out of memory", "MemoryError")


class Draw(NamedTuple):
    """A request to draw tokens (Engine.generate)."""

    model_role: str
    context: np.ndarray
    sampling: Sampling
    rng_key: int


class Scoring(NamedTuple):
    """A request to score tokens (Engine.score)."""

    model_role: str
    context: np.ndarray
    tokens: np.ndarray
    want: tuple[str, ...]


class EngineHost:
    """An engine in a process of its own; its methods are those of a Ray actor, on one event loop.

    threads  of matmuls: the bits of a sample are those of one process with as many
    """

    def __init__(self, recipe: EngineRecipe, threads: int) -> None:
        torch.set_num_threads(threads)
        self.recipe = recipe
        self.engine: BuiltinEngine | EqualLengthEngine | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._answers: list[tuple[int, Any]] = []
        self._answered = asyncio.Event()

    async def process(self) -> int:
        """Its process id."""
        return os.getpid()

    async def load(self, group: str, parts: Sequence[Any], version: int, running: bool) -> str:
        """Load a weight group from the object store: the fingerprint of what it then holds."""
        weights: dict[str, torch.Tensor] = {}
        for part in parts:
            weights |= unpacked(await part)
        if self.engine is None:
            self.engine = self.recipe.build()
        while not running and self._tasks:  # cancelled requests, which leave at the engine's next step
            await asyncio.wait(list(self._tasks.values()))
            await asyncio.sleep(0.01)
        load = self.engine.load_running if running and isinstance(self.engine, BuiltinEngine) else self.engine.load
        return load(group, weights, version)

    async def submit(self, requests: Sequence[tuple[int, Draw | Scoring]]) -> None:
        """Begin requests, each with a number."""
        for number, request in requests:
            self._tasks[number] = asyncio.create_task(self._answer(number, request))

    async def answers(self, wait: float) -> list[tuple[int, Any]]:
        """(number, answer) of what is over since it was asked last; waits for one, at most so many seconds.

        An answer that is an exception is to be raised.
        """
        if not self._answers:
            self._answered.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._answered.wait()
            except TimeoutError:
                return []
        out, self._answers = self._answers, []
        return out

    async def cancel(self, numbers: Sequence[int]) -> None:
        """Drop requests."""
        for number in numbers:
            if (task := self._tasks.get(number)) is not None:
                task.cancel()

    async def sleep(self) -> None:
        """Give up weights and cache until weights are loaded again."""
        self.engine = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    async def _answer(self, number: int, request: Draw | Scoring) -> None:
        try:
            answer: Any = await self._of_engine(request)
        except asyncio.CancelledError:
            return
        except SelfteachError as error:
            answer = error
        except BaseException as error:
            text = describe(error, 200)
            if any(word in text for word in MEMORY):
                answer = EngineLost(
                    f"engine: a rollout worker is out of memory ({text}); take fewer --slots or a shorter --context,"
                    " then go on with --resume"
                )
            else:
                answer = RuntimeError(text)
        finally:
            self._tasks.pop(number, None)
        self._answers.append((number, answer))
        self._answered.set()

    async def _of_engine(self, request: Draw | Scoring) -> Any:
        assert self.engine is not None
        if isinstance(request, Draw):
            return await self.engine.generate(*request)
        return dict(await self.engine.score(*request))
