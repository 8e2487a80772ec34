"""Python's global random generator, lent to code that draws from it, so that each user of it has a state of its own."""

from __future__ import annotations

import threading
from random import Random, getstate, setstate
from types import TracebackType

_LOCK = threading.Lock()  # of the global generator


class PrivateRandom:
    """While it is entered, the global generator has the state that it was left with the last time, from a seed on."""

    def __init__(self, seed: int) -> None:
        self.state = Random(seed).getstate()
        self._outside = self.state

    def __enter__(self) -> None:
        _LOCK.acquire()
        self._outside = getstate()
        setstate(self.state)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.state = getstate()
        setstate(self._outside)
        _LOCK.release()
