"""Calls of code that is not ours: rewards, tools, programs.

Blocking functions run in daemon threads, one at a time in each; coroutine functions that need nothing of the run's own
event loop in a background loop. Both are abandoned if they hang. Whatever they raise becomes an ordinary exception, so
that no `sys.exit()` in a reward ends a run.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import queue
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

from .errors import UserCodeFailed, describe

# Exceptions that a future takes for something else, or cannot carry.
NOT_CARRIED = (StopIteration, StopAsyncIteration, concurrent.futures.CancelledError)


class _Worker(threading.Thread):
    """A daemon thread that does one call after another. Beginning a thread takes longer than most rewards, above all
    where the machine is busy, so one whose call has returned waits for the next.
    """

    def __init__(self) -> None:
        super().__init__(name="run_in_thread", daemon=True)
        self.calls = queue.SimpleQueue[Callable[[], None] | None]()

    def run(self) -> None:
        """Do calls until there is None."""
        while (call := self.calls.get()) is not None:
            call()
            del call  # what it holds is not kept while waiting
            _idle.append(self)


_workers: WeakSet[_Worker] = WeakSet()
_idle: list[_Worker] = []  # those that wait for a call
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a fork has none of the threads


@atexit.register
def _join_threads() -> None:
    """Wait a moment for threads that are about to end: one that takes the interpreter while it shuts down aborts the
    process.
    """
    until = time.monotonic() + 0.5
    for worker in list(_workers):
        worker.calls.put(None)
    for worker in list(_workers):
        worker.join(max(0.0, until - time.monotonic()))


def run_in_thread(fn: Callable[..., Any], *args: Any, **named: Any) -> asyncio.Future[Any]:
    """The future of fn(*args, **named), called in a daemon thread that does nothing else meanwhile.

    One that never returns holds up neither the calls after it (a pool would run out of workers) nor the end of the
    process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():  # the caller timed out
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def work() -> None:
        value, error = None, None
        try:
            value = fn(*args, **named)
        except BaseException as raised:  # one that exits ends its own call only
            error = ordinary(raised)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        _workers.add(worker)
        worker.start()
    worker.calls.put(work)
    return future


def ordinary(error: BaseException) -> Exception:
    """An exception as a future can carry it and an event loop survives it: its own, or UserCodeFailed."""
    if isinstance(error, Exception) and not isinstance(error, NOT_CARRIED):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, {frames[-1].name})" if frames else ""
    return UserCodeFailed(describe(error) + where)


async def guarded(call: Awaitable[Any]) -> Any:
    """The result of a coroutine of a user's on this event loop.

    SystemExit, StopIteration and a CancelledError that it raises itself become UserCodeFailed: any of them would end
    or stall the loop. A cancellation from outside (a deadline) and KeyboardInterrupt (Ctrl-C) pass.
    """
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


def on_run_loop(fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Mark a coroutine function of our own that never blocks and has to run on the run's event loop."""
    fn.on_run_loop = True  # type: ignore[attr-defined]
    return fn


class BackgroundLoop:
    """An event loop in a daemon thread, for coroutine functions that may block it.

    All share one loop, so that they may share clients and connections. One that blocks it past a caller's deadline
    costs that loop: the next call gets a new one.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, fn: Callable[..., Awaitable[Any]], *args: Any, seconds: float | None = None) -> Any:
        """The result of `await fn(*args)`. Raises TimeoutError after `seconds`, UserCodeFailed as `guarded` does."""
        loop = self._running()
        future = asyncio.run_coroutine_threadsafe(guarded(_awaited(fn, args)), loop)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except TimeoutError:
            if not await self._answers(loop) and self._loop is loop:
                self._loop = None
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="user coroutines", daemon=True).start()
        return self._loop

    async def _answers(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a loop still takes turns: whether it does something within a second."""
        ping = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)
        done, _ = await asyncio.wait([asyncio.wrap_future(ping)], timeout=1.0)
        return bool(done)


async def _awaited(fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> Any:
    return await fn(*args)


background = BackgroundLoop()
