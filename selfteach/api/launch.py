"""Carrying out a run from Python: with progress and callbacks, also where an event loop runs already."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..analysis.health import HealthWatch
from ..configuration import RunConfig
from ..core.errors import BadValue, UserCodeFailed, describe
from ..core.threads import raised_at, run_aside
from ..loop.session import StopRequest
from ..progress import show_progress
from ..training import Observer, Outcome, carried_out, carry_out, new_run_folder


def launch(
    run_config: RunConfig, folder: Path, observer: Observer, resume: bool, progress: bool, on_step: Observer
) -> Outcome:
    """Train in a folder until done or asked to stop."""
    with observing(observer, progress) as seen:
        return carry_out(run_config, folder, seen, resume, on_step, watch=HealthWatch())


async def launch_async(
    run_config: RunConfig, folder: Path, observer: Observer, resume: bool, progress: bool, on_step: Observer
) -> Outcome:
    """The same in a thread of its own; where the waiting task is cancelled, it stops after a step with a checkpoint."""
    stop = StopRequest()
    with observing(observer, progress) as seen:
        work = carried_out(run_config, folder, seen, resume, on_step, stop, HealthWatch())
        return await run_aside(work, lambda: stop.first(signal.SIGINT, seen))


@contextmanager
def observing(observer: Observer, progress: bool) -> Generator[Observer]:
    """An observer, with the progress shown besides."""
    if not progress:
        yield observer
        return
    with show_progress(panel=True) as shown:

        def both(event: Mapping[str, Any]) -> None:
            shown(event)
            observer(event)

        yield both


@contextmanager
def run_folder(run_config: RunConfig, out: str | Path | None) -> Generator[Path]:
    """The folder of a run: `out`, or a new one, which is removed where nothing was begun in it."""
    folder = Path(out) if out is not None else new_run_folder(run_config.method.name or "method")
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
