"""The global random generators of Python and NumPy, lent to code that draws from them, so that each user of them has a
state of its own.
"""

from __future__ import annotations

import threading
from random import Random, getstate, setstate
from types import TracebackType
from typing import Any

from numpy.random import RandomState, get_state, set_state

_LOCK = threading.Lock()  # of the global generators


class PrivateRandom:
    """While it is entered, the global generators have the states that they were left with last, from a seed on.

    numpy  lend NumPy's as well, which takes four times as long; False for code that never draws from it
    """

    def __init__(self, seed: int, numpy: bool = True) -> None:
        self.state = Random(seed).getstate(), RandomState(seed % 2**32).get_state() if numpy else None
        self._outside = self.state

    def __enter__(self) -> None:
        _LOCK.acquire()
        self._outside = self._states()
        _set(self.state)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.state = self._states()
        _set(self._outside)
        _LOCK.release()

    def _states(self) -> tuple[Any, Any]:
        return getstate(), None if self.state[1] is None else get_state()  # noqa: NPY002 (it is lent, not drawn from)


def _set(states: tuple[Any, Any]) -> None:
    setstate(states[0])
    if states[1] is not None:
        set_state(states[1])  # noqa: NPY002
