"""Blocking calls in daemon threads, one each, which are abandoned if they hang."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

_threads: WeakSet[threading.Thread] = WeakSet()


@atexit.register
def _join_threads() -> None:
    """Wait a moment for threads that are about to end: one that takes the interpreter while it shuts down aborts the
    process.
    """
    until = time.monotonic() + 0.5
    for thread in list(_threads):
        thread.join(max(0.0, until - time.monotonic()))


def run_in_thread(fn: Callable[..., Any], *args: Any, **named: Any) -> asyncio.Future[Any]:
    """The future of fn(*args, **named), called in a daemon thread.

    One that never returns holds up neither the calls after it (a pool would run out of workers) nor the end of the
    process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: Exception | None) -> None:
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
        except StopIteration as stop:  # a future cannot carry it
            error = RuntimeError(f"StopIteration: {stop}")
        except Exception as other:
            error = other
        except BaseException as end:  # a tool that calls exit() ends its own call only
            error = RuntimeError(f"{type(end).__name__}: {end}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, error)

    thread = threading.Thread(target=work, name=f"run_in_thread {getattr(fn, '__name__', 'call')}", daemon=True)
    _threads.add(thread)
    thread.start()
    return future
