"""Beginning a run from Python: at once, on an event loop, or step by step."""

from __future__ import annotations

import signal
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any, Unpack

from ..analysis.health import HealthWatch
from ..configuration import RunArguments, RunConfig, listed, plan
from ..core.errors import BadValue
from ..core.loops import LoopThread
from ..core.method import Method, MethodEntry
from ..loop.session import Observer, StopRequest, ignore_events
from ..training import Outcome, opened
from .launch import Trackers, launch, launch_async, observing, run_folder
from .run import Run, Step, load, step_of

Callbacks = Sequence[Callable[[Step], object]]


@listed(RunArguments)
def train(
    method: RunConfig | str | Method | MethodEntry[...],
    out: str | Path | None = None,
    observer: Observer = ignore_events,
    resume: bool = False,
    *,
    progress: bool = True,
    callbacks: Callbacks = (),
    log: Trackers = (),
    **given: Unpack[RunArguments],
) -> Run:
    """Train in a run folder, from the start or from its newest checkpoint, until done or asked to stop (Ctrl-C).

        train(methods.grpo(rollouts=8), model="tiny", task="chain_sum", steps=40)
        train(methods.grpo(), model="path/or/name", train=rows, reward=my_reward, settings=RunSettings(lr=1e-5))

    method     a method, its name, or a RunConfig, which is complete
    out        the run's folder; None: runs/METHOD-N
    observer   is called with each event of the run, a mapping with "event" for its kind
    resume     go on in a folder that holds this run
    progress   show a live panel on stderr (docs/monitoring.md), in a notebook a bar in its cell; plain lines where
               stderr is no terminal
    callbacks  functions that are called with each Step; one that raises ends the run, whose last checkpoint is kept
    log        where metrics go besides: tensorboard, wandb, mlflow, trackio, jsonl, or trackers of your own
               (docs/monitoring.md)

    All others are those of `configuration.RunArguments`: a task by name, or rows of your own in `train` and `test` with
    a `reward` (docs/data.md); hyper-parameters in `args`, settings in `settings`. Any other name is a setting (steps),
    or a hyper-parameter of a method given by name, where only one of them has it.

    Where an event loop runs already, as in a notebook, the run has a thread of its own.
    """
    run_config = run_config_for(method, given)
    with run_folder(run_config, out) as folder:
        return _run(launch(run_config, folder, observer, resume, progress, _on_step(folder, callbacks), log))


@listed(RunArguments)
async def train_async(
    method: RunConfig | str | Method | MethodEntry[...],
    out: str | Path | None = None,
    observer: Observer = ignore_events,
    resume: bool = False,
    *,
    progress: bool = True,
    callbacks: Callbacks = (),
    log: Trackers = (),
    **given: Unpack[RunArguments],
) -> Run:
    """`train` for an async program: the event loop goes on meanwhile, observer and callbacks are called in the run's
    thread, and where the waiting task is cancelled, the run stops after its step with a checkpoint.
    """
    run_config = run_config_for(method, given)
    with run_folder(run_config, out) as folder:
        return _run(
            await launch_async(run_config, folder, observer, resume, progress, _on_step(folder, callbacks), log)
        )


@listed(RunArguments)
def steps(
    method: RunConfig | str | Method | MethodEntry[...],
    out: str | Path | None = None,
    observer: Observer = ignore_events,
    resume: bool = False,
    *,
    progress: bool = True,
    log: Trackers = (),
    **given: Unpack[RunArguments],
) -> Steps:
    """A run whose steps are taken one by one.

        for step in steps(methods.grpo(), task="chain_sum", steps=40):
            print(step.number, step.metrics["reward/mean"])

    Arguments as in `train`. Leaving the loop early, also by an exception, ends the run with a checkpoint; `Run.resume`
    goes on.
    """
    return Steps(run_config_for(method, given), out, observer, resume, progress, log)


class Steps:
    """The steps of a run, to be iterated over once; nothing is begun before.

    Where the iterator may outlive its loop, use it in a `with`, or call `close`: until then the run's folder is held.
    """

    def __init__(
        self,
        run_config: RunConfig,
        out: str | Path | None,
        observer: Observer,
        resume: bool,
        progress: bool,
        log: Trackers = (),
    ) -> None:
        self._given = run_config, out, observer, resume, progress, log
        self._open: weakref.ref[Generator[Step]] | None = None  # it ends with the loop that holds it
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """The run as it is now. Raises BadValue before the first step."""
        if self._run is None:
            raise BadValue("steps: the run has not begun; iterate over its steps first")
        return self._run

    def __iter__(self) -> Generator[Step]:
        if self._open is not None:
            raise BadValue("steps: were begun already, and a run has one iterator; go on with run.resume()")
        made = self._stepped()
        self._open = weakref.ref(made)
        return made

    def close(self) -> None:
        """End the run where it is, with a checkpoint."""
        if self._open is not None and (taken := self._open()) is not None:
            taken.close()

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _stepped(self) -> Generator[Step]:
        run_config, out, observer, resume, progress, log = self._given
        stop = StopRequest()
        with ExitStack() as stack:
            folder = stack.enter_context(run_folder(run_config, out))
            seen = stack.enter_context(observing(run_config, folder, observer, resume, progress, log))
            thread = stack.enter_context(LoopThread())
            events = _events(run_config, folder, seen, resume, stop)

            def ask() -> bool:
                return stop.first(signal.SIGINT, seen)

            stack.callback(lambda: thread.wait_for(events.aclose()))
            while True:
                found = thread.wait_for(_next(events), ask)
                if isinstance(found, Outcome):
                    self._run = _run(found)
                    return
                self._run = self._run or load(folder)
                yield step_of(self._run, found)


async def _events(
    run_config: RunConfig, folder: Path, observer: Observer, resume: bool, stop: StopRequest
) -> AsyncGenerator[Mapping[str, Any] | Outcome]:
    """The event of each step of a run, then what came of it; closed between two steps it leaves a checkpoint."""
    async with opened(run_config, folder, observer, resume, stop, HealthWatch()) as run:
        async with aclosing(run.session.steps()) as taken:
            try:
                async for event in taken:
                    yield event
            except GeneratorExit:
                run.session.leave()
                raise
        yield await run.outcome()


async def _next(events: AsyncGenerator[Any]) -> Any:
    return await anext(events)


def resume(
    folder: str | Path,
    observer: Observer = ignore_events,
    trust: bool = False,
    *,
    progress: bool = True,
    callbacks: Callbacks = (),
    log: Trackers = (),
    steps: int | None = None,
) -> Run:
    """Continue the run in a folder from its newest checkpoint; as `Run.resume`.

    trust  run the Python files that its config.json names, even if this user has not run them here before

    Raises BadValue where the folder holds no run, or names a file that must not be run.
    """
    run = Run(Path(folder), {}, False, 0.0)
    return run.resume(steps, observer, trust=trust, progress=progress, callbacks=callbacks, log=log)


def run_config_for(method: RunConfig | str | Method | MethodEntry[...], given: Mapping[str, Any]) -> RunConfig:
    """The configuration of a run of what `train` was given. Raises BadValue for more beside a RunConfig."""
    stated = {name: value for name, value in given.items() if value is not None}
    if not isinstance(method, RunConfig):
        return plan(method, **stated)
    if stated:
        raise BadValue(
            f"train: a RunConfig is complete, so {', '.join(stated)} cannot be given beside it; use RunConfig.override"
        )
    return method


def _run(outcome: Outcome) -> Run:
    return Run(**vars(outcome))


def _on_step(folder: Path, callbacks: Callbacks) -> Observer:
    return Run(folder, {}, False, 0.0).on_step(callbacks)
