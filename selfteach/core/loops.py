"""Event loops: one in a thread of its own, and coroutines that are run to their end whatever interrupts them."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar, cast
from weakref import WeakSet

from .user_code import guarded

T = TypeVar("T")


class StoppableThread(threading.Thread, ABC):
    """A daemon thread that can be asked to end, which it is at the end of the process."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)

    def start(self) -> None:
        """Begin it."""
        _threads.add(self)
        super().start()

    @abstractmethod
    def stop(self) -> None:
        """Ask it to end as soon as it can."""


_threads: WeakSet[StoppableThread] = WeakSet()


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


class LoopThread(StoppableThread):
    """A daemon thread that runs an event loop; as a context manager from its beginning to its end."""

    def __init__(self, name: str = "run") -> None:
        super().__init__(name)
        self.loop = asyncio.new_event_loop()

    def __enter__(self) -> LoopThread:
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.clear)  # a fork has none of them
