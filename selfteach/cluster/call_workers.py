"""Calls of users' functions in processes of their own: rewards of single answers, and typed tools.

A function that crashes or hangs costs its process, which is replaced. What stays in the run itself, because it needs
what only the run has (its engine, its episodes, its memory of earlier steps): coroutine functions, rewards that read
`group`, `groups`, `context`, `state` or `history`, tools with a state of their own (searches, games), environments.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core import registry
from ..core.blocks import Block
from ..core.errors import UserCodeFailed, describe
from ..core.functions import FunctionSpec
from ..core.scoring import nested
from ..core.serial import from_json, to_json
from ..core.user_code import on_run_loop, raised_at
from .ray_cluster import Cluster

OF_ONE_ANSWER = frozenset({"text", "answer", "task", "path"})  # what a reward may read that is called elsewhere
TRIES = 2  # processes that a call may end before it has failed


class CallHost:
    """Calls blocks that are sent by name; its methods are those of a Ray actor."""

    def __init__(self, files: Sequence[str]) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch itself is not imported, unless what is called needs it
        for file in files:
            registry.load_file(file)
        self._blocks: dict[str, Any] = {}
        self._built: dict[str, Any] = {}

    def process(self) -> int:
        """Its process id."""
        return os.getpid()

    def call(
        self, name: str, sent: Any, modules: Sequence[str], built: bool, given: Mapping[str, Any]
    ) -> tuple[bool, Any]:
        """(True, what a block returned), or (False, what it raised, in words).

        modules  that register it, imported first: all others would take seconds
        built    call what the block gives without inputs (a tool), with one argument
        """
        try:
            if name not in self._blocks:
                for module in modules:
                    importlib.import_module(module)
                self._blocks[name] = from_json(sent)
            block = self._blocks[name]
            if not built:
                return True, block(**given)
            if name not in self._built:
                self._built[name] = block()
            return True, self._built[name](given["query"])
        except BaseException as error:
            return False, describe(error) + raised_at(error)


@dataclass(eq=False)
class Caller:
    """One such process as the run sees it."""

    number: int
    actor: Any = None


class CallWorkers:
    """The processes that call rewards and tools (core.scoring.Processes).

    files  of a user's own that they run first
    warn   is told of those that are replaced
    counts calls, those that were made again, processes that were replaced
    """

    def __init__(self, cluster: Cluster, files: Sequence[str], start_seconds: float) -> None:
        self.cluster, self.files, self.start_seconds = cluster, list(files), start_seconds
        self.warn: Callable[[str], object] = warnings.warn
        self.counts: Counter[str] = Counter(calls=0, again=0, replaced=0)
        self.callers = [Caller(n) for n in range(cluster.resources.reward_workers)]
        self._free: deque[Caller] = deque(self.callers)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sent: dict[str, Any] = {}
        for caller in self.callers:
            self._begin(caller)
        self.processes = cluster.wait(
            [c.actor.process.remote() for c in self.callers], start_seconds, "a reward worker"
        )

    def takes(self, reward: Block) -> bool:
        """Whether a reward is called here."""
        if inspect.iscoroutinefunction(reward.fn) or hasattr(reward.fn, "on_run_loop") or nested(reward):
            return False
        return set(reward.needs) <= OF_ONE_ANSWER and self._known(reward)

    async def score(self, reward: Block, given: Mapping[str, Any], seconds: float) -> Any:
        """What a reward gives for one answer.

        Raises TimeoutError after `seconds` of its call, and UserCodeFailed for what it raised, and where it ended its
        process each time.
        """
        return await self._call(reward, False, given, seconds)

    def tool(self, block: Block) -> Callable[[Any], Any] | None:
        """A typed function that is called here, as the run's own tool of it; None for any other tool."""
        if block.name != "typed_function" or not self._known(block):
            return None
        own = block()
        spec = getattr(own, "spec", None)
        if inspect.iscoroutinefunction(own) or not isinstance(spec, FunctionSpec):
            return None

        async def call(query: Any) -> Any:
            return await self._call(block, True, {"query": query}, None)

        made: Any = on_run_loop(call)
        made.spec = spec
        return made

    def about(self) -> str:
        """In a line: the processes."""
        n = len(self.callers)
        return f"{n} reward worker{'s' * (n > 1)}: processes {', '.join(map(str, self.processes))}"

    def close(self) -> None:
        """End all processes."""
        for caller in self.callers:
            self.cluster.end(caller.actor)

    async def _call(self, block: Block, built: bool, given: Mapping[str, Any], seconds: float | None) -> Any:
        """One call. Cancelled in the middle (a deadline of the caller's own), its process is ended too."""
        how, name = "", str(block)
        sent = self._sent.get(name) or self._sent.setdefault(name, to_json(block))
        modules = [m for m in [block.fn.__module__] if m.startswith("selfteach.")]
        for attempt in range(TRIES):
            self.counts["again" if attempt else "calls"] += 1
            caller, good = await self._ready(), False
            try:
                async with asyncio.timeout(seconds):
                    fine, value = await caller.actor.call.remote(name, sent, modules, built, dict(given))
                good = True
            except self.cluster.ray.exceptions.RayError as error:
                how = self.cluster.ended(error)
                continue
            finally:
                if not good:
                    self._replace(caller)
                self._give_back(caller)
            if fine:
                return value
            raise UserCodeFailed(value)
        raise UserCodeFailed(f"the end of {TRIES} processes in which it was called; the last {how}")

    async def _ready(self) -> Caller:
        """A process that is free and answers; those that ended between two calls are replaced.

        Raises UserCodeFailed where none does in time.
        """
        how = ""
        for _ in range(TRIES * len(self.callers) + 1):
            caller, good = await self._taken(), False
            try:
                async with asyncio.timeout(self.start_seconds):
                    await caller.actor.process.remote()
                good = True
                return caller
            except (TimeoutError, self.cluster.ray.exceptions.RayError) as error:
                how = self.cluster.ended(error)
            finally:
                if not good:
                    self._replace(caller)
                    self._give_back(caller)
        raise UserCodeFailed(f"nothing: no reward worker starts; the last {how}")

    def _known(self, block: Block) -> bool:
        """Whether other processes can find a block by its name; what is sent of it is kept."""
        if block.fn.__module__ == "__main__":
            return False
        with contextlib.suppress(TypeError):
            self._sent.setdefault(str(block), to_json(block))
        return str(block) in self._sent

    async def _taken(self) -> Caller:
        """A process that is free; waits for it, first come, first served."""
        while not self._free:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        return self._free.popleft()

    def _give_back(self, caller: Caller) -> None:
        self._free.append(caller)
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done() and not turn.get_loop().is_closed():
                turn.set_result(None)
                return

    def _begin(self, caller: Caller) -> None:
        cluster = self.cluster
        bundle = cluster.resources.bundle_of_call(caller.number)
        caller.actor = cluster.actor(CallHost, bundle, cluster.resources.call, self.files)

    def _replace(self, caller: Caller) -> None:
        self.counts["replaced"] += 1
        self.warn(f"reward worker {caller.number} ended, or did not answer in time; it is replaced")
        self.cluster.end(caller.actor)
        self._begin(caller)
