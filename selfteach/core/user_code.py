"""What code that is not ours raises, carried so that it ends its own call and never a run.

`guarded` awaits a user's coroutine on this event loop, `user_code` surrounds a call that a step cannot do without.
Calls in threads and in a loop of their own are in `threads`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sysconfig
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from .errors import SelfteachError, UserCodeFailed, describe

LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
# Exceptions that a future takes for something else, or cannot carry.
NOT_CARRIED = (StopIteration, StopAsyncIteration, concurrent.futures.CancelledError)


def ordinary(error: BaseException) -> Exception:
    """An exception as a future can carry it and an event loop survives it: its own, or UserCodeFailed."""
    if isinstance(error, Exception) and not isinstance(error, NOT_CARRIED):
        return error
    return UserCodeFailed(describe(error) + raised_at(error))


def raised_at(error: BaseException) -> str:
    """` (file:line, function)` of the innermost call that is in no installed library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(LIBRARIES)] or frames
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno}, {own[-1].name})" if own else ""


class user_code:  # a context manager; one made of a generator lets a StopIteration through
    """Around a call that a step cannot do without (a loss, an assigner, a select): what it raises is one line.

    Raises UserCodeFailed with `what` was called, the exception and its place; errors of our own, a lack of memory and
    Ctrl-C pass as they are.
    """

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, frames: Any) -> None:
        if error is None or isinstance(error, SelfteachError | KeyboardInterrupt | MemoryError):
            return
        text = describe(error)
        if "memory" not in text.lower():  # torch's lack of it, by which micro-batches are halved
            raise UserCodeFailed(f"{self.what} raised {text}{raised_at(error)}") from error


def end_fork(process: int) -> None:
    """End this process where it is not `process`: a fork in a user's call that came back from it.

    It has the run's lock, sockets and event loop, and would do all of the run a second time.
    """
    if os.getpid() != process:
        os._exit(1)


async def guarded(call: Awaitable[Any]) -> Any:
    """The result of a coroutine of a user's on this event loop.

    SystemExit, StopIteration and a CancelledError that it raises itself become UserCodeFailed: any of them would end
    or stall the loop. A cancellation from outside (a deadline) and KeyboardInterrupt (Ctrl-C) pass.
    """
    process = os.getpid()
    try:
        return await call
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ordinary(error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ordinary(error) from error
    finally:
        end_fork(process)


def on_run_loop(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function, or a coroutine function, that never blocks and is to run on the run's event loop."""
    fn.on_run_loop = True  # type: ignore[attr-defined]
    return fn
