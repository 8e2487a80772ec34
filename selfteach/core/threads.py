"""Calls of code that is not ours: rewards, tools, programs.

`call_user` calls functions in daemon threads, one at a time in each, and coroutine functions in a background loop. Both
are abandoned if they hang. Whatever they raise becomes an ordinary exception, so that no `sys.exit()` in a reward ends
a run.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from .loops import LoopThread, StoppableThread
from .user_code import end_fork, guarded, ordinary


class _Worker(StoppableThread):
    """A daemon thread that does one call after another. Beginning a thread takes longer than most rewards, above all
    where the machine is busy, so one whose call has returned waits for the next.
    """

    def __init__(self) -> None:
        super().__init__("run_in_thread")
        self.calls = queue.SimpleQueue[Callable[[], None] | None]()

    def run(self) -> None:
        """Do calls until there is None."""
        while (call := self.calls.get()) is not None:
            call()
            del call  # what it holds is not kept while waiting
            _idle.append(self)

    def stop(self) -> None:
        """End it after the calls that it has."""
        self.calls.put(None)


class _Returns:
    """Results of calls in threads, on their way to an event loop, which those that come together wake once."""

    def __init__(self) -> None:
        self.waiting = deque[Callable[[], None]]()
        self.woken = False

    def put(self, loop: asyncio.AbstractEventLoop, settle: Callable[[], None]) -> None:
        """Have it called on the loop; from any thread."""
        self.waiting.append(settle)
        if not self.woken:  # else another has woken the loop, which has not begun to look at what waits
            self.woken = True
            loop.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        """Call all that wait; the others too where one raises."""
        self.woken = False  # before looking: what comes from here on wakes it again
        try:
            while self.waiting:
                self.waiting.popleft()()
        finally:
            if self.waiting:
                asyncio.get_running_loop().call_soon(self.deliver)


_idle: list[_Worker] = []  # workers that wait for a call
_returns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Returns] = WeakKeyDictionary()


async def call_user(fn: Callable[..., Any], seconds: float | None, /, *args: Any, **named: Any) -> Any:
    """The result of a user's fn(*args, **named), called where it can hold up nothing but its own caller.

        a function                              in a daemon thread
        a coroutine function                    in the background loop
        either, marked by `on_run_loop`         on this event loop, which it can block; a function without a deadline

    Raises TimeoutError after `seconds` (None: no limit), and what it raises itself as an ordinary exception.
    """
    if not inspect.iscoroutinefunction(fn):
        if hasattr(fn, "on_run_loop"):
            return await guarded(_at_once(fn, *args, **named))
        return await asyncio.wait_for(run_in_thread(fn, *args, **named), seconds)
    if hasattr(fn, "on_run_loop"):
        return await asyncio.wait_for(guarded(fn(*args, **named)), seconds)
    return await background.run(fn, seconds, *args, **named)


async def _at_once(fn: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    return fn(*args, **named)


def run_in_thread(fn: Callable[..., Any], *args: Any, **named: Any) -> asyncio.Future[Any]:
    """The future of fn(*args, **named), called in a daemon thread that does nothing else meanwhile.

    One that never returns holds up neither the calls after it (a pool would run out of workers) nor the end of the
    process.
    """
    loop, process = asyncio.get_running_loop(), os.getpid()
    future: asyncio.Future[Any] = loop.create_future()
    if (returns := _returns.get(loop)) is None:
        returns = _returns[loop] = _Returns()

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
        end_fork(process)
        if not loop.is_closed():
            returns.put(loop, partial(settle, value, error))

    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.start()
    worker.calls.put(work)
    return future


class BackgroundLoop:
    """An event loop in a daemon thread, for coroutine functions that may block it.

    All share one loop, so that they may share clients and connections. One that blocks it past a caller's deadline
    costs that loop, and the calls that had begun in it: those that had not, and the next, get a new one.
    """

    def __init__(self) -> None:
        self._thread: LoopThread | None = None

    async def run(self, fn: Callable[..., Awaitable[Any]], seconds: float | None, /, *args: Any, **named: Any) -> Any:
        """The result of `await fn(*args, **named)`. Raises TimeoutError after `seconds`, UserCodeFailed as `guarded`
        does.
        """
        thread, begun = self._running(), False

        async def call() -> Any:
            nonlocal begun
            begun = True
            try:
                return await guarded(fn(*args, **named))
            except KeyboardInterrupt as error:  # not Ctrl-C, which the main thread gets
                raise ordinary(error) from error

        future = asyncio.run_coroutine_threadsafe(call(), thread.loop)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except TimeoutError:
            if await self._answers(thread.loop):
                raise
            if self._thread is thread:
                self.forget()
            if begun:
                raise
        return await self.run(fn, seconds, *args, **named)  # another call blocked the loop before this one's turn

    def forget(self) -> None:
        """Let the next call begin a new loop."""
        self._thread = None

    def _running(self) -> LoopThread:
        if self._thread is None:
            self._thread = LoopThread("user coroutines")
            self._thread.start()
        return self._thread

    async def _answers(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a loop still takes turns: whether it does something within a second."""
        ping = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)
        done, _ = await asyncio.wait([asyncio.wrap_future(ping)], timeout=1.0)
        return bool(done)


class FromBackground:
    """An object of the run's event loop for coroutines in the background loop: its coroutine methods run on `loop`.

    within: attributes of which the same holds.
    """

    def __init__(self, of: Any, loop: asyncio.AbstractEventLoop, within: tuple[str, ...] = ()) -> None:
        self._of, self._loop, self._within = of, loop, within

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._of, name)
        if name in self._within and value is not None:
            return FromBackground(value, self._loop)
        if not inspect.iscoroutinefunction(value):
            return value

        async def call(*args: Any, **named: Any) -> Any:
            future = asyncio.run_coroutine_threadsafe(value(*args, **named), self._loop)
            return await asyncio.wrap_future(future)

        return call


background = BackgroundLoop()


def _forget_threads() -> None:
    """A fork has none of the threads."""
    _idle.clear()
    background.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
