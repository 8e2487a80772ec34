"""Carrying out a run from Python: with progress and callbacks, also where an event loop runs already."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from .. import training
from ..analysis.health import HealthWatch
from ..configuration import RunConfig
from ..core.errors import BadValue, UserCodeFailed, describe
from ..core.loops import run_aside
from ..core.user_code import raised_at
from ..loop.session import Observer, StopRequest
from ..progress import show_progress
from ..tracking import Tracker, tracked
from ..tracking.feed import warn_in_words
from ..training import Outcome

Trackers = str | Tracker | Sequence[str | Tracker]  # names of `--log`, or trackers


def launch(
    run_config: RunConfig,
    folder: Path,
    observer: Observer,
    resume: bool,
    progress: bool,
    on_step: Observer,
    log: Trackers = (),
) -> Outcome:
    """Train in a folder until done or asked to stop."""
    with observing(run_config, folder, observer, resume, progress, log) as seen:
        return training.carry_out(run_config, folder, seen, resume, on_step, watch=HealthWatch())


async def launch_async(
    run_config: RunConfig,
    folder: Path,
    observer: Observer,
    resume: bool,
    progress: bool,
    on_step: Observer,
    log: Trackers = (),
) -> Outcome:
    """The same in a thread of its own; where the waiting task is cancelled, it stops after a step with a checkpoint."""
    stop = StopRequest()
    with observing(run_config, folder, observer, resume, progress, log) as seen:
        work = training.carried_out(run_config, folder, seen, resume, on_step, stop, HealthWatch())
        return await run_aside(work, lambda: stop.first(signal.SIGINT, seen))


@contextmanager
def observing(
    run_config: RunConfig, folder: Path, observer: Observer, resume: bool, progress: bool, log: Trackers
) -> Generator[Observer]:
    """An observer of a run, with its progress shown and given to trackers besides.

    Raises, before any work, UnknownName and BadValue for a tracker that is none or whose package is missing. Under
    torchrun, a process that is not rank 0 works for that one here, and exits.
    """
    training.serve_other_ranks(run_config)
    names = [log] if isinstance(log, str) or not isinstance(log, Sequence) else list(log)
    with ExitStack() as stack:
        shown = stack.enter_context(show_progress(panel=True)) if progress else warn_in_words

        def both(event: Mapping[str, Any]) -> None:
            shown(event)
            observer(event)

        yield stack.enter_context(tracked(names, folder, run_config.to_json(), both, resume))


@contextmanager
def run_folder(run_config: RunConfig, out: str | Path | None) -> Generator[Path]:
    """The folder of a run: `out`, or a new one, which is removed where nothing was begun in it."""
    folder = Path(out) if out is not None else training.new_run_folder(run_config.method.name or "method")
    try:
        yield folder
    except BaseException:
        if out is None and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        raise


def calling(
    callbacks: Sequence[Callable[[Any], object]], step_of: Callable[[Mapping[str, Any]], Any], folder: Path
) -> Observer:
    """A function of a step's event that calls the callbacks with what `step_of` makes of it.

    Raises BadValue for one that cannot be called as a function. What a callback raises ends the run as UserCodeFailed
    with its name.
    """
    for callback in callbacks:
        if not callable(callback) or inspect.iscoroutinefunction(callback):
            kind = "a coroutine function" if callable(callback) else f"a {type(callback).__name__}"
            raise BadValue(f"callbacks: {_name(callback)} is {kind}; give functions of a step")

    def on_step(event: Mapping[str, Any]) -> None:
        for callback in callbacks:
            try:
                callback(step_of(event))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # one that exits, too
                raise UserCodeFailed(
                    f"callback {_name(callback)} raised {describe(error)}{raised_at(error)} after step {event['step']};"
                    f" {folder} goes on from its newest checkpoint with selfteach.resume"
                ) from error

    return on_step


def _name(callback: Any) -> str:
    return getattr(callback, "__qualname__", None) or type(callback).__name__
