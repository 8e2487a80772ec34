"""The engine over rollout workers: each holds a built-in engine, and a request goes to one of them.

A sample is a function of weights, context and RNG key, so the requests of a worker that dies or hangs are asked again
of another and give the same tokens; the worker is replaced meanwhile. Any number of workers gives the bits of one
process with as many threads.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..core.errors import EngineLost, EngineMismatch, SelfteachError, unknown
from ..core.protocols import Completion
from ..core.task import Sampling
from ..engine.builtin import BuiltinEngine
from ..engine.equal_length_batching import EqualLengthEngine
from ..engine.recipe import EngineRecipe
from .engine_host import Draw, EngineHost, Scoring
from .prefix_routes import PrefixRoutes
from .ray_cluster import Cluster
from .stored_weights import store

POLL = 2.0  # seconds that a worker is asked to wait for an answer
TRIES = 3  # workers that a request may lose
MOST_ENDS = 4  # times in a row that a worker may end without having answered anything


@dataclass(eq=False)
class Request:
    """A request, and who waits for it."""

    number: int
    call: Draw | Scoring
    future: asyncio.Future[Any]
    begun: float = 0.0
    lost: int = 0  # workers that ended while they had it


@dataclass(eq=False)
class Worker:
    """A rollout worker as the run sees it.

    up      whether it holds the newest weights and may be asked
    ends    how often in a row it has ended without an answer
    gone    whether it ended so often that it is not replaced any more
    """

    number: int
    actor: Any = None
    process: int = 0
    up: bool = False
    ends: int = 0
    gone: bool = False
    requests: dict[int, Request] = field(default_factory=dict[int, Request])
    outbox: list[Request] = field(default_factory=list[Request])
    reader: asyncio.Task[None] | None = None
    reviver: asyncio.Task[None] | None = None

    @property
    def load(self) -> int:
        """Requests that it has."""
        return len(self.requests)

    def __str__(self) -> str:
        return f"rollout worker {self.number} (process {self.process})"


@dataclass(frozen=True)
class Held:
    """Weights in the object store."""

    parts: Sequence[Any]
    version: int
    fingerprint: str = ""


class WorkerEngine:
    """Samples in rollout workers (core.protocols.Engine).

    recipe         what each worker builds its engine from
    threads        of a worker's matmuls
    seconds        that a worker may take for one request, and for a delivery
    start_seconds  that a worker may take to start
    warn           is told of workers that are replaced
    counts         tokens generated and scored; requests, those that were asked again, workers that were replaced

    Raises EngineLost where workers do not start.
    """

    def __init__(
        self, cluster: Cluster, recipe: EngineRecipe, threads: int, seconds: float, start_seconds: float
    ) -> None:
        own = EqualLengthEngine.capabilities if recipe.batched_by_length else BuiltinEngine.capabilities
        self.capabilities = replace(own, name=f"{own.name} on Ray", remote=True)
        self.cluster, self.recipe, self.threads = cluster, recipe, threads
        self.seconds, self.start_seconds = seconds, start_seconds
        self.groups: Sequence[str] = recipe.groups
        self.warn: Callable[[str], object] = warnings.warn
        self.counts: Counter[str] = Counter(generated=0, scored=0, requests=0, again=0, replaced=0)
        self.workers = [Worker(number) for number in range(cluster.resources.rollout_workers)]
        self._recipe = cluster.put(recipe)
        self._held: dict[str, Held] = {}
        self._asleep = False
        self._routes: PrefixRoutes[Worker] = PrefixRoutes()
        self._waiting: deque[Request] = deque()
        self._numbers = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        for worker in self.workers:
            self._begin(worker)
        found = cluster.each([w.actor.process.remote() for w in self.workers], start_seconds)
        for worker, process in zip(self.workers, found, strict=True):
            if isinstance(process, BaseException):
                raise EngineLost(f"engine: rollout worker {worker.number} {cluster.ended(process)} as it started")
            worker.process, worker.up = process, True

    # ---- core.protocols.Engine

    async def generate(
        self,
        model_role: str,
        context: np.ndarray,
        sampling: Sampling,
        rng_key: int,
        on_tokens: Callable[[np.ndarray], object] | None = None,
    ) -> Completion:
        """As BuiltinEngine.generate; tokens come when all are drawn."""
        found: Completion = await self._ask(Draw(model_role, np.asarray(context), sampling, rng_key))
        self.counts["generated"] += len(found.ids)
        if on_tokens is not None and len(found.ids):
            on_tokens(found.ids)
        return found

    async def score(
        self, model_role: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)
    ) -> Mapping[str, np.ndarray]:
        """As BuiltinEngine.score."""
        self.counts["scored"] += len(tokens)
        return await self._ask(Scoring(model_role, np.asarray(context), np.asarray(tokens), tuple(want)))

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """Deliver a weight group to all workers, by one copy in the object store; the fingerprint that all hold.

        Raises EngineMismatch while requests run, and where workers hold different ones; EngineLost where none is left.
        """
        if running := sum(w.load for w in self.workers) + len(self._waiting):
            raise EngineMismatch(f"weights of {group!r} cannot change while {running} of its requests run")
        return self._deliver(group, weights, version, False)

    def load_running(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """As `load`, also while requests run, which go on under the new weights."""
        return self._deliver(group, weights, version, True)

    def fingerprint(self, group: str) -> str:
        """A short hash of the weights delivered last, as the workers computed it."""
        if group not in self._held:
            raise unknown("weight group that was delivered", group, self._held)
        return self._held[group].fingerprint

    # ---- sleep

    def sleep(self) -> None:
        """Let workers give up their weights and caches until the next delivery or request."""
        if not self._asleep:
            self._asleep = True
            self._routes.forget()
            self.cluster.each([w.actor.sleep.remote() for w in self.workers if w.up], self.seconds)

    def about(self) -> str:
        """In a line: the workers."""
        n = len(self.workers)
        return f"{n} rollout worker{'s' * (n > 1)}: processes {', '.join(str(w.process) for w in self.workers)}"

    async def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            for task in (worker.reader, worker.reviver):
                if task is not None and not task.get_loop().is_closed():
                    task.cancel()
            self.cluster.end(worker.actor)
            worker.up = False

    # ---- requests

    async def _ask(self, call: Draw | Scoring) -> Any:
        """The answer to a request, whichever worker gives it."""
        loop = self._use_running_loop()
        if call.model_role not in self.recipe.model_roles:
            raise unknown("model", call.model_role, self.recipe.model_roles)
        if self._asleep:
            self._wake()
        self._numbers += 1
        self.counts["requests"] += 1
        request = Request(self._numbers, call, loop.create_future())
        self._waiting.append(request)
        self._dispatch()
        try:
            return await request.future
        except asyncio.CancelledError:
            self._drop(request)
            raise

    def _dispatch(self) -> None:
        """Give waiting requests to workers with a free slot, in order."""
        while self._waiting:
            free = [w for w in self.workers if w.up and w.load < self.recipe.slots]
            if not free:
                return
            request = self._waiting.popleft()
            worker = self._routes.choose(request.call.context, free)
            worker.requests[request.number] = request
            request.begun = time.monotonic()
            if not worker.outbox:
                asyncio.get_running_loop().call_soon(self._send, worker)
            worker.outbox.append(request)

    def _send(self, worker: Worker) -> None:
        """Send a worker what has gathered in this turn of the loop, in one call."""
        sent, worker.outbox = [r for r in worker.outbox if r.number in worker.requests], []
        if not sent or not worker.up:
            return
        worker.actor.submit.remote([(r.number, r.call) for r in sent])
        if worker.reader is None:
            worker.reader = asyncio.get_running_loop().create_task(self._read(worker), name=str(worker))

    async def _read(self, worker: Worker) -> None:
        """Take a worker's answers as long as it has requests."""
        try:
            while worker.requests:
                async with asyncio.timeout(POLL + self.seconds):
                    answers = await worker.actor.answers.remote(POLL)
                for number, answer in answers:
                    worker.ends = 0
                    if (request := worker.requests.pop(number, None)) is not None and not request.future.done():
                        _settle(request.future, answer)
                if (late := self._late(worker)) is not None:
                    raise TimeoutError(late)
                self._dispatch()
            worker.reader = None
        except (TimeoutError, self.cluster.ray.exceptions.RayError) as error:
            worker.reader = None
            self._lose(worker, error)

    def _late(self, worker: Worker) -> str | None:
        """What a worker has not answered in time; None where there is nothing."""
        now = time.monotonic()
        late = [r for r in worker.requests.values() if now - r.begun > self.seconds]
        if not late:
            return None
        kinds = ", ".join(sorted({"a completion" if isinstance(r.call, Draw) else "scores" for r in late}))
        return f"no answer within {self.seconds:g} s to {len(late)} of {worker.load} requests (for {kinds})"

    def _drop(self, request: Request) -> None:
        """Forget a request that nobody waits for any more."""
        if request in self._waiting:
            self._waiting.remove(request)
        for worker in self.workers:
            if worker.requests.pop(request.number, None) is not None and worker.up:
                worker.actor.cancel.remote([request.number])

    def _use_running_loop(self) -> asyncio.AbstractEventLoop:
        """Let go of what belongs to an event loop that is no more."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._waiting.clear()
            for worker in self.workers:
                if worker.requests and worker.up:
                    worker.actor.cancel.remote(list(worker.requests))
                worker.requests, worker.outbox, worker.reader, worker.reviver = {}, [], None, None
                if not worker.up:
                    self._replace(worker)
        return loop

    # ---- workers that end

    def _lose(self, worker: Worker, error: BaseException) -> None:
        """Ask others what a worker had, and replace it."""
        lost, worker.requests, worker.outbox = list(worker.requests.values()), {}, []
        how = self._ended(worker, error)
        for request in reversed(lost):
            request.lost += 1
            if request.future.done():
                continue
            if request.lost < TRIES:
                self._waiting.appendleft(request)
                self.counts["again"] += 1
            else:
                why = f"engine: {TRIES} rollout workers ended with one request, the last: {how}; its context has"
                why += f" {len(request.call.context)} tokens: out of memory? Take fewer --slots, then --resume"
                request.future.set_exception(EngineLost(why))
        self.warn(f"{how}; {len(lost)} of its requests are asked again, and it is replaced")
        self._replace(worker, how)
        self._dispatch()

    def _replace(self, worker: Worker, how: str = "") -> None:
        """Start a worker anew beside the others, unless it has ended too often."""
        if worker.ends > MOST_ENDS:
            self._give_up(worker, how)
        elif worker.reviver is None and not worker.gone:
            worker.reviver = asyncio.get_running_loop().create_task(self._revive(worker))

    def _ended(self, worker: Worker, error: BaseException) -> str:
        """Note that a worker has ended; how, in words."""
        self.cluster.end(worker.actor)
        if worker.reviver is not None and worker.reviver is not asyncio.current_task():
            worker.reviver.cancel()
        worker.up, worker.ends, worker.reviver = False, worker.ends + 1, None
        self.counts["replaced"] += 1
        self._routes.forget(worker)
        return f"{worker} {self.cluster.ended(error)}"

    def _begin(self, worker: Worker) -> None:
        bundle = self.cluster.resources.bundle_of_worker(worker.number)
        share = self.cluster.resources.worker
        worker.actor = self.cluster.actor(EngineHost, bundle, share, self._recipe, self.threads)

    async def _revive(self, worker: Worker) -> None:
        """Start a worker anew and give it the newest weights."""
        self._begin(worker)
        try:
            async with asyncio.timeout(self.start_seconds):
                worker.process = await worker.actor.process.remote()
                given: dict[str, Held] = {}
                while given != self._held and not self._asleep:  # a delivery may come between
                    given = dict(self._held)
                    for group, held in given.items():
                        self._check(group, await self._loaded(worker, group, held, False), worker)
        except (TimeoutError, SelfteachError, self.cluster.ray.exceptions.RayError) as error:
            if isinstance(error, TimeoutError):
                error = TimeoutError(f"not ready within {self.start_seconds:g} s of its start")
            self._replace(worker, self._ended(worker, error))
            return
        worker.up, worker.reviver = True, None
        self._dispatch()

    def _give_up(self, worker: Worker, how: str) -> None:
        """Leave a worker dead; where none is left, everything that waits fails."""
        worker.reviver, worker.gone = None, True
        if any(w.up or w.reviver is not None for w in self.workers):
            self.warn(f"{how}, {worker.ends} times in a row; the run goes on without it")
            self._dispatch()
            return
        lost = EngineLost(
            f"engine: no rollout worker is left; {how}, {worker.ends} times in a row; go on with --resume"
        )
        for request in self._waiting:
            if not request.future.done():
                request.future.set_exception(lost)
        self._waiting.clear()

    # ---- deliveries

    def _deliver(self, group: str, weights: Mapping[str, Any], version: int, running: bool) -> str:
        if group not in self.groups:
            raise unknown("weight group", group, self.groups)
        self._held[group] = Held(store(self.cluster, weights), version)
        self._routes.forget()
        if self._asleep:
            return self._wake(group)
        return self._load_all([group], running)[group]

    def _wake(self, delivered: str = "") -> str:
        """Give all workers all weights again; the fingerprint of the group that is delivered."""
        self._asleep = False
        return self._load_all(list(self._held), False).get(delivered, "")

    def _load_all(self, groups: Sequence[str], running: bool) -> dict[str, str]:
        """Have the workers load groups. Those that end meanwhile are replaced beside the others; where none is left,
        they are waited for.
        """
        self._use_running_loop()
        for _ in range(MOST_ENDS + 1):
            todo = {w: groups for w in self.workers if w.up}
            if not todo:  # those that are starting cannot go on while this waits
                todo = {w: list(self._held) for w in self.workers if not w.gone}
                for worker in todo:
                    self._ended(worker, RuntimeError("is begun once more"))
                    self._begin(worker)
            calls = [(w, g) for w, own in todo.items() for g in own]
            seconds = self.seconds + (0.0 if all(w.up for w in todo) else self.start_seconds)
            answers = self.cluster.each(
                [self._loaded(w, g, self._held[g], running and w.up) for w, g in calls], seconds
            )
            bad = {w: a for (w, _), a in zip(calls, answers, strict=True) if isinstance(a, BaseException)}
            found: dict[str, str] = {}
            for (worker, group), answer in zip(calls, answers, strict=True):
                if worker not in bad:
                    self._check(group, answer, worker)
                    found[group] = answer
            for worker in todo:
                if worker not in bad and not worker.up:
                    (worker.process,) = self.cluster.wait([worker.actor.process.remote()], self.seconds, str(worker))
                    worker.up = True
            for worker, error in bad.items():
                if isinstance(raised := getattr(error, "cause", None), SelfteachError):
                    raise raised
                how = self._ended(worker, error)
                self.warn(f"{how} as it was given weights; it is replaced")
                if found:
                    self._replace(worker, how)
            if found:
                return found
        raise EngineLost("engine: no rollout worker took the weights; go on with --resume")

    def _loaded(self, worker: Worker, group: str, held: Held, running: bool) -> Any:
        return worker.actor.load.remote(group, held.parts, held.version, running)

    def _check(self, group: str, fingerprint: str, worker: Worker) -> None:
        """Raise EngineMismatch where a worker holds other weights than those before it."""
        held = self._held[group]
        if held.fingerprint and held.fingerprint != fingerprint:
            raise EngineMismatch(
                f"weights {group!r}, version {held.version}: {worker} holds {fingerprint}, others {held.fingerprint}"
            )
        self._held[group] = replace(held, fingerprint=fingerprint)


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
