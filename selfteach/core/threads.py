"""Calls of code that is not ours: rewards, tools, programs.

`call_user` calls functions in daemon threads, one at a time in each, and coroutine functions in a background loop. Both
are abandoned if they hang. Whatever they raise becomes an ordinary exception, so that no `sys.exit()` in a reward ends
a run.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import inspect
import os
import queue
import sysconfig
import threading
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

from .errors import SelfteachError, UserCodeFailed, describe

T = TypeVar("T")
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
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

    def stop(self) -> None:
        """End it after the calls that it has."""
        self.calls.put(None)


class _Returns:
    """Results of calls in threads, on their way to an event loop, which those that come together wake once."""

    def __init__(self) -> None:
        self.waiting = deque[Callable[[], None]]()

    def put(self, loop: asyncio.AbstractEventLoop, settle: Callable[[], None]) -> None:
        """Have it called on the loop; from any thread."""
        self.waiting.append(settle)
        if len(self.waiting) == 1:  # else the one before it has woken the loop, which has not come to it yet
            loop.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        """Call all that wait; the others too where one raises."""
        try:
            while self.waiting:
                self.waiting.popleft()()
        finally:
            if self.waiting:
                asyncio.get_running_loop().call_soon(self.deliver)


class LoopThread(threading.Thread):
    """A daemon thread that runs an event loop; as a context manager from its beginning to its end."""

    def __init__(self, name: str = "run") -> None:
        super().__init__(name=name, daemon=True)
        self.loop = asyncio.new_event_loop()

    def __enter__(self) -> LoopThread:
        _threads.add(self)
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()
        self.join()

    def wait_for(self, work: Awaitable[T], goes_on: Callable[[], bool] = lambda: False) -> T:
        """The result of an awaitable on this loop; Ctrl-C while waiting as in `run_to_end`."""
        aside = _Aside(work, self.loop)
        while not aside.ended.is_set():
            try:
                aside.ended.wait()
            except KeyboardInterrupt:
                if not goes_on():
                    aside.cancel()
                    aside.ended.wait()
                    raise
        return aside.result()

    def run(self) -> None:
        """Run the loop until it is stopped; what it has begun is cancelled, so that it may close what it holds."""
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def stop(self) -> None:
        """End it as soon as no coroutine blocks it."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)


_threads: WeakSet[_Worker | LoopThread] = WeakSet()
_idle: list[_Worker] = []  # workers that wait for a call
_returns: WeakKeyDictionary[asyncio.AbstractEventLoop, _Returns] = WeakKeyDictionary()


@atexit.register
def _join_threads() -> None:
    """Wait a moment for threads that are about to end: one that takes the interpreter while it shuts down aborts the
    process.
    """
    until = time.monotonic() + 0.5
    threads = list(_threads)
    for thread in threads:
        thread.stop()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


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
        _threads.add(worker)
        worker.start()
    worker.calls.put(work)
    return future


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


def run_to_end(work: Coroutine[Any, Any, T], goes_on: Callable[[], bool] = lambda: False) -> T:
    """asyncio.run, after which the coroutine has always ended: its locks are released and signals are as they were.

    Where Ctrl-C ends a task in the middle, asyncio leaves the coroutines that wait for it to the garbage collector.

    Where this thread runs an event loop already (a notebook), the coroutine has a thread with a loop of its own.
    goes_on is called there on Ctrl-C: whether it was asked to end by itself and is waited for; otherwise it is
    cancelled.
    """
    if has_event_loop():
        with LoopThread() as thread:
            return thread.wait_for(work, goes_on)
    tasks: list[asyncio.Task[Any]] = []

    async def main() -> T:
        tasks.extend(t for t in [asyncio.current_task()] if t)
        return await work

    with asyncio.Runner() as runner:
        try:
            return runner.run(main())
        except BaseException:
            for _ in range(100):  # each task that waited for the one that was interrupted raises it again
                if all(t.done() for t in tasks):
                    break
                with contextlib.suppress(BaseException):
                    tasks[0].cancel()
                    runner.get_loop().run_until_complete(tasks[0])
            raise


def has_event_loop() -> bool:
    """Whether this thread runs an event loop, as in a notebook."""
    with contextlib.suppress(RuntimeError):
        return bool(asyncio.get_running_loop())
    return False


async def run_aside(work: Coroutine[Any, Any, T], cancelled: Callable[[], object]) -> T:
    """The result of a coroutine that blocks its event loop: it has a thread with a loop of its own.

    cancelled is called where the waiting task is cancelled: it asks the coroutine to end, which is waited for.
    """
    here, over = asyncio.get_running_loop(), asyncio.Event()
    with LoopThread() as thread:
        aside = _Aside(work, thread.loop, lambda: here.call_soon_threadsafe(over.set))
        try:
            await over.wait()
        except asyncio.CancelledError:
            cancelled()
            while not over.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await over.wait()
            raise
        return aside.result()


class _Aside(Generic[T]):
    """An awaitable on the event loop of another thread; `ended` is set, and `on_end` called there, when it is over."""

    def __init__(
        self, work: Awaitable[T], loop: asyncio.AbstractEventLoop, on_end: Callable[[], object] = lambda: None
    ) -> None:
        self.ended, self._work, self._loop, self._on_end = threading.Event(), work, loop, on_end
        loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._settled())
        self._task.add_done_callback(lambda _: (self.ended.set(), self._on_end()))

    async def _settled(self) -> tuple[T | None, BaseException | None]:
        """(result, error): an error is returned, since KeyboardInterrupt would end the thread's loop."""
        try:
            return await guarded(self._work), None
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            return None, error

    def cancel(self) -> None:
        """Cancel it, also where it has not begun."""
        self._loop.call_soon_threadsafe(lambda: self._task.cancel())

    def result(self) -> T:
        """Its result, once it has ended. Raises what it raised."""
        value, error = self._task.result()
        if error is not None:
            raise error
        return cast("T", value)


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
            _threads.add(self._thread)
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
    _threads.clear()
    _idle.clear()
    background.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
