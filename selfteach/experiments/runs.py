"""Many runs, several at once in processes of their own, from the cache of finished ones."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ..analysis.learning_curve import KINDS, curve, curve_figures
from ..analysis.verdict import end_figure
from ..configuration import RunConfig
from ..core.errors import BadValue, SelfteachError
from ..core.serial import plain
from ..loop import checkpoint
from ..loop.log import logged_steps, read_events
from ..loop.run_folder import finished_figures
from ..loop.session import Observer, ignore_events
from ..run_cache import accuracy_curve, folder_lock, logged_summaries, run_key, run_once

TRIES = 2  # of a run whose process dies
PATIENCE = 60.0  # seconds that a run gets to end its step and save, when all are stopped


class OutOfTime(Exception):
    """The time for an experiment is spent; runs that were begun are finished."""


@dataclass(frozen=True)
class RunRequest:
    """A run that an experiment needs: the arm that it belongs to, its seed, its configuration."""

    arm: str
    seed: int
    run_config: RunConfig

    @property
    def name(self) -> str:
        """What the run is called in messages."""
        return f"{self.arm} seed {self.seed}"


@dataclass
class Worker:
    """A process that carries out runs, one at a time."""

    process: BaseProcess
    connection: Any  # our end of the pipe: a Connection, on Windows a PipeConnection
    request: RunRequest | None = None
    key: str = ""
    warming: str = ""  # the warm start that it reads or trains, until that is there
    ready: bool = False


@dataclass
class RunPool:
    """Runs carried out `jobs` at a time, each announced to the observer, their figures kept.

    jobs 1: in this process, one after another. More: in worker processes, one thread each, kept alive over runs;
    events come with "run", the run's name. A worker that dies is reported and its run tried once more. Whatever stops
    the pool, its runs can be resumed: they are folders of the run cache.

    store     the folder of cached runs
    measures  names of figures of curves that are wanted (auc, steps_to@0.8)
    known     run key -> figures of a finished run, from a result written before: such a run is not done again
    deadline  by time.monotonic(), after which no run is begun
    tolerant  a run that fails is noted in `failed` (arm, seed -> the error), and the others go on
    steps_shown  of each finished run, how many steps' rollouts are kept to be looked at, spread over it, for those of
              all are most of its folder; None: all
    results   arm -> seed -> figures of the run: before, after, counts, tokens, steps, seconds, evals, logged, key,
              curves
    """

    store: Path
    observer: Observer = ignore_events
    jobs: int = 1
    measures: Sequence[str] = ()
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    deadline: float | None = None
    tolerant: bool = False
    steps_shown: int | None = 11
    failed: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str], init=False)
    results: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict, init=False)
    _workers: list[Worker] = field(default_factory=list[Worker], init=False)
    _number: int = field(default=0, init=False)
    _total: int = field(default=0, init=False)

    def __enter__(self) -> RunPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, requests: Iterable[RunRequest]) -> None:
        """Carry out runs that are not finished yet, and keep the figures of all.

        Raises OutOfTime where the deadline is reached, KeyboardInterrupt where a run was stopped, SelfteachError where
        one failed and the pool is not tolerant.
        """
        asked = [(r, run_key(r.run_config)) for r in requests]
        self._total += len(asked)
        to_do: dict[str, RunRequest] = {}
        for request, key in asked:
            if key in self.known:
                self._announce(request, True)
                self.results.setdefault(request.arm, {})[request.seed] = dict(self.known[key])
            elif finished_figures(self.store / key) is not None:
                self._announce(request, True)
                self._keep(request, key)
            elif key in to_do:  # another arm has the same run
                self._number += 1
            else:
                to_do[key] = request
        if self.jobs > 1 and len(to_do) > 1:
            self._run_in_workers(deque((r, k) for k, r in to_do.items()))
        else:
            for key, request in to_do.items():
                if self._is_late():
                    raise OutOfTime
                self._announce(request, False)
                try:
                    run_once(request.run_config, self.store, self.observer, key)
                except SelfteachError as error:
                    self._fail(request, error)
                else:
                    self._keep(request, key)
        for request, key in asked:
            if request.seed in self.results.get(request.arm, {}) or (request.arm, request.seed) in self.failed:
                continue
            if finished_figures(self.store / key) is not None:
                self._keep(request, key)
            elif (same := to_do[key]) and (same.arm, same.seed) in self.failed:
                self.failed[request.arm, request.seed] = self.failed[same.arm, same.seed]

    def close(self) -> None:
        """Stop all workers; a run under way ends its step and saves a checkpoint."""
        workers, self._workers = self._workers, []
        for w in workers:
            if w.request is None:
                w.connection.close()  # which ends it
            elif not w.ready:
                w.process.terminate()
            elif w.process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(w.process.pid, signal.SIGINT)
        until = time.monotonic() + PATIENCE
        for w in workers:
            if w.request is not None:
                with contextlib.suppress(EOFError, OSError):
                    while w.connection.poll(max(0.0, until - time.monotonic())):
                        # What it still tells: a closed end would cut off its checkpoint, but not what is over already.
                        if w.connection.recv()[0] in ("done", "error", "stopped"):
                            break
                w.connection.close()
            w.process.join(5)
            if w.process.is_alive():
                w.process.kill()
                w.process.join()

    # ---- one run

    def _is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _announce(self, request: RunRequest, reused: bool) -> None:
        self._number += 1
        about = {"arm": request.arm, "seed": request.seed, "number": self._number, "total": self._total}
        self.observer({"event": "arm", **about, "reused": reused})

    def _fail(self, request: RunRequest, error: SelfteachError) -> None:
        if not self.tolerant:
            raise error
        self.failed[request.arm, request.seed] = str(error)
        self.observer({"event": "note", "text": f"{request.arm}, seed {request.seed} failed: {error}"})

    def _keep(self, request: RunRequest, key: str) -> None:
        folder = self.store / key
        figures = finished_figures(folder) or {}
        events = list(read_events(folder / "log"))
        figures["evals"], figures["logged"] = accuracy_curve(folder), logged_summaries(folder)
        figures["logged"] |= curve_figures(events, self.measures)
        figures["curves"] = {kind: curve(events, kind) for kind in KINDS}
        figures["warnings"] = sorted({e["rule"] for e in events if e["event"] == "warning"})
        figures["key"] = key
        self.results.setdefault(request.arm, {})[request.seed] = figures
        if self.steps_shown is not None:
            with folder_lock(folder, ignore_events):  # who waited for the same run thins it too
                thin_rollouts(folder / "log", self.steps_shown)
                thin_checkpoints(folder)

    # ---- many at once

    def _run_in_workers(self, queue: deque[tuple[RunRequest, str]]) -> None:
        tried: Counter[str] = Counter()
        while queue or any(w.request for w in self._workers):
            while not self._is_late() and self._has_room() and (chosen := self._next(queue)) is not None:
                worker, (request, key) = self._free_worker(), chosen
                worker.request, worker.key, worker.warming = request, key, warm_key(request.run_config)
                tried[key] += 1
                if tried[key] == 1:
                    self._announce(request, False)
                with contextlib.suppress(OSError):  # of one that died while idle: seen below
                    worker.connection.send((request.run_config.to_json(), key))
            busy = [w for w in self._workers if w.request]
            if not busy:
                raise OutOfTime
            for connection in wait([w.connection for w in busy]):
                worker = next(w for w in busy if w.connection is connection)
                try:
                    self._hear(worker, worker.connection.recv())
                except (EOFError, OSError):
                    self._bury(worker, queue, tried)

    def _has_room(self) -> bool:
        return sum(w.request is not None for w in self._workers) < self.jobs

    def _next(self, queue: deque[tuple[RunRequest, str]]) -> tuple[RunRequest, str] | None:
        """Take the first run whose warm start no other run is training just now: it will find that in the cache."""
        warming = {w.warming for w in self._workers if w.request}
        for i, (request, key) in enumerate(queue):
            if warm_key(request.run_config) not in warming:
                del queue[i]
                return request, key
        return None

    def _free_worker(self) -> Worker:
        """An idle worker, or a new one."""
        idle = next((w for w in self._workers if w.request is None), None)
        if idle is not None:
            return idle
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(theirs, str(self.store)), daemon=True)
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"  # a run sets the threads that it wants; libraries read this as they load
        try:
            process.start()
        finally:
            os.environ.pop("OMP_NUM_THREADS")
            if before is not None:
                os.environ["OMP_NUM_THREADS"] = before
        theirs.close()
        self._workers.append(Worker(process, ours))
        return self._workers[-1]

    def _hear(self, worker: Worker, message: tuple[str, Any]) -> None:
        """Take a worker's message: an event of its run, or how that ended."""
        kind, value = message
        request = worker.request
        if kind == "ready":
            worker.ready = True
        elif kind == "event" and request is not None:
            if value["event"] == "start":
                worker.warming = ""
            self.observer({**value, "run": request.name})
        elif kind == "done" and request is not None:
            self._keep(request, worker.key)
            worker.request = None
        elif kind == "stopped":
            raise KeyboardInterrupt
        elif request is not None:
            worker.request = None
            self._fail(request, SelfteachError(f"{request.name}: {value}"))

    def _bury(self, worker: Worker, queue: deque[tuple[RunRequest, str]], tried: Counter[str]) -> None:
        """Report a worker that died and put its run back, in front. Raises SelfteachError where it died twice."""
        worker.process.join(5)
        self._workers.remove(worker)
        request, code = worker.request, worker.process.exitcode
        if request is None:
            return
        why = f"killed by signal {-code}" if code is not None and code < 0 else f"exit status {code}"
        self.observer({"event": "worker_died", "run": request.name, "why": why, "again": tried[worker.key] < TRIES})
        if tried[worker.key] >= TRIES:
            raise SelfteachError(
                f"{request.name}: its process died {TRIES} times ({why}); where memory is short give fewer --jobs"
            )
        queue.appendleft((request, worker.key))


def thin_rollouts(log: Path, steps: int) -> None:
    """Keep of a finished run's log (RUN/log) the rollouts of `steps` steps, the first and the last among them."""
    logged = logged_steps(log)
    if len(logged) > steps:
        kept = {logged[round(i * (len(logged) - 1) / max(1, steps - 1))] for i in range(steps)}
        for step in set(logged) - kept:
            (log / "rollouts" / f"{step:06d}.npz").unlink(missing_ok=True)


def thin_checkpoints(run: Path) -> None:
    """Keep of a finished run's checkpoints the newest, without its optimiser: nothing goes on from there.

    Of a model of 135 million parameters that is half a gigabyte in place of five.
    """
    newest = checkpoint.find(run)
    if newest is None:
        return
    for folder in newest.parent.iterdir():
        if folder.name != newest.name:
            shutil.rmtree(folder, ignore_errors=True)
    checkpoint.leave_out(newest, "optimiser.safetensors")


def warm_key(run_config: RunConfig) -> str:
    """What the start of a run depends on, as text."""
    return str((run_config.task, dict(run_config.task_options), run_config.model, run_config.warm))


def serve(connection: Connection, store: str) -> None:
    """The work of a worker process: run after run as its connection says, until that is closed."""
    try:
        with contextlib.suppress(AttributeError, OSError):
            os.setpgrp()  # Ctrl-C reaches the parent alone, which passes it on once
        connection.send(("ready", None))
        while True:
            _serve_one(connection, store)
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return  # nobody listens any more


def _serve_one(connection: Connection, store: str) -> None:
    data, key = connection.recv()

    def tell(event: Mapping[str, Any]) -> None:
        connection.send(("event", plain(dict(event))))

    try:
        folder = run_once(RunConfig.from_json(data, trust=True), Path(store), tell, key)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except KeyboardInterrupt:
        connection.send(("stopped", None))
        raise
    except SelfteachError as error:
        connection.send(("error", str(error)))
    except Exception:
        connection.send(("error", traceback.format_exc()))
    else:
        connection.send(("done", str(folder)))


def required_figure(run: Mapping[str, Any], measure: str) -> float:
    """`end_figure`. Raises BadValue where the run has none of that name."""
    value = end_figure(run, measure)
    if value is None:
        known = sorted({*run["after"], *run["logged"]})
        raise BadValue(f"a run has no figure {measure}; those that it has: {', '.join(known)}")
    return float(value)


def available_cores() -> int:
    """How many cores this process may use: the default of --jobs."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
