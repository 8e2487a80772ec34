"""What code that is not ours may raise: one of each kind that something on the way treats differently."""

from __future__ import annotations

import asyncio
import concurrent.futures


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Bare(BaseException):
    pass


RAISED = [
    ValueError("no"),
    SystemExit("x"),
    SystemExit(0),
    KeyboardInterrupt("k"),
    asyncio.CancelledError(),
    concurrent.futures.CancelledError(),
    GeneratorExit(),
    StopIteration(3),
    StopAsyncIteration(),
    RecursionError(),
    MemoryError(),
    TimeoutError("mine"),
    Unprintable(),
    Bare("b"),
    BaseExceptionGroup("many", [SystemExit(1)]),
]
IDS = [type(e).__name__ + str(i) for i, e in enumerate(RAISED)]
