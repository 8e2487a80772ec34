"""Which worker has computed the beginning of a context: by hashes of its blocks of tokens, each over all before it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

BLOCK = 16  # tokens
KEPT = 4096  # blocks that are remembered of each worker, the newest
SLACK = 8  # requests by which a worker with the context's beginning may have more than another
EACH = 1.25  # times as many


class Busy(Protocol):
    """A worker, and how many requests it has."""

    @property
    def load(self) -> int:
        """Requests that it has."""
        ...


W = TypeVar("W", bound=Busy)


class PrefixRoutes(Generic[W]):
    """Chooses the worker that has most of a context in its cache, unless it is much busier than another.

    So an episode's turns stay with one worker, and the answers to one prompt share its computation.
    """

    def __init__(self) -> None:
        self._seen: dict[W, OrderedDict[int, None]] = {}

    def choose(self, context: np.ndarray, free: Sequence[W]) -> W:
        """One of the workers that are free, which has then seen this context."""
        blocks = hashes(context)
        least = min(w.load for w in free)
        able = [w for w in free if w.load <= EACH * least + SLACK]
        best = max(able, key=lambda w: (self._known(w, blocks), -w.load))
        seen = self._seen.setdefault(best, OrderedDict())
        for block in blocks:
            seen[block] = None
            seen.move_to_end(block)
        while len(seen) > KEPT:
            seen.popitem(last=False)
        return best

    def forget(self, worker: W | None = None) -> None:
        """Forget what a worker has, or all: its cache was dropped."""
        if worker is None:
            self._seen.clear()
        else:
            self._seen.pop(worker, None)

    def _known(self, worker: W, blocks: Sequence[int]) -> int:
        seen = self._seen.get(worker, ())
        return next((n for n, block in enumerate(blocks) if block not in seen), len(blocks))


def hashes(context: np.ndarray) -> list[int]:
    """A hash of each whole block of a context, and of all before it; of a shorter context one."""
    ids = np.ascontiguousarray(context, np.int32)
    out, before = list[int](), 0
    for begin in range(0, max(len(ids) - BLOCK, 0) + 1, BLOCK):
        before = hash((before, ids[begin : begin + BLOCK].tobytes()))
        out.append(before)
    return out
