"""Which pages of a cache the sequences of its slots stand on: a fork stands on its trunk's pages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

PAGE = 64  # positions


class Copy(NamedTuple):
    """What the cache must do before a page is written: take positions `start` to `stop` of one slot's part of it over to another's."""

    source: int
    target: int
    start: int
    stop: int


class Pages:
    """Sequences of at most `each` pages in a cache that has room for as many of each slot's own.

    table     i64[slots, each]: the slot in whose part of the cache positions 64 n to 64 n + 63 of a slot's sequence lie; -1: in none yet
    holders   i64[slots, each]: how many sequences stand on a page; only who stands there alone writes to it

    A slot writes into its own part, or, while others still stand there, into any page of the same n that nobody holds. There is one: as long
    as a column of the table has an empty entry, or two that are equal, fewer than all slots are in it.
    """

    def __init__(self, slots: int, each: int):
        self.table = np.full((slots, each), -1, np.int64)
        self.holders = np.zeros((slots, each), np.int64)

    def share(self, source: int, target: int, count: int) -> list[Copy]:
        """Let a slot's sequence be the first `count` tokens of another's, or of its own: of a last page that is not full it gets its own copy."""
        upto = -(-count // PAGE)
        if source == target:
            self._leave(target, upto)
        else:
            where = self.table[source, :upto].copy()
            self.holders[where, np.arange(upto)] += 1
            self._leave(target, 0)
            self.table[target, :upto] = where
        return self._own(target, upto - 1, count) if count % PAGE else []

    def write(self, slots: np.ndarray, start: np.ndarray, take: np.ndarray) -> list[Copy]:
        """Let slots (each once) stand alone on the pages of positions start .. start + take - 1; what is before `start` is kept."""
        first, last = start // PAGE, (start + take - 1) // PAGE
        where = self.table[slots, first]
        copies: list[Copy] = []
        for i in np.flatnonzero((last > first) | (where < 0) | (self.holders[where, first] > 1)):
            for n in range(int(first[i]), int(last[i]) + 1):
                copies += self._own(int(slots[i]), n, int(start[i]))
        return copies

    def clear(self) -> None:
        """Let go of every page."""
        self.table.fill(-1)
        self.holders.fill(0)

    def _own(self, slot: int, n: int, keep: int) -> list[Copy]:
        """Let a slot stand alone on its n-th page, with the positions before `keep` as they are."""
        old = int(self.table[slot, n])
        if old >= 0 and self.holders[old, n] == 1:
            return []
        free = self.holders[:, n] == 0
        new = slot if free[slot] else int(free.argmax())
        self.table[slot, n], self.holders[new, n] = new, 1
        if old < 0:
            return []
        self.holders[old, n] -= 1
        return [Copy(old, new, n * PAGE, keep)] if keep > n * PAGE else []

    def _leave(self, slot: int, first: int) -> None:
        """Let go of a slot's pages from the `first` on."""
        n = np.flatnonzero(self.table[slot, first:] >= 0) + first
        self.holders[self.table[slot, n], n] -= 1
        self.table[slot, first:] = -1
