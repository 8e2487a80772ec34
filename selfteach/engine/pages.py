"""Which pages of a cache the sequences of its slots stand on: a fork stands on its trunk's pages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

PAGE = 64  # positions


class Copy(NamedTuple):
    """What the cache must do before a page is written: take the first `count` positions of page `source` over to page `target`."""

    source: int
    target: int
    count: int


class Pages:
    """A pool of pages for `slots` sequences of at most `each` pages.

    table     i64[slots, each]: the page that holds positions 64 i to 64 i + 63 of a slot's sequence; -1: none
    holders   i64[pages]: how many slots stand on a page; only who holds it alone writes to it

    There are slots x each pages, which always suffice: while an entry of the table is empty, or one of several that name the same page,
    fewer pages than entries are held. Pages that were let go last are taken first, so a pool is touched no further than it was ever filled.
    """

    def __init__(self, slots: int, each: int):
        self.table = np.full((slots, each), -1, np.int64)
        self.holders = np.zeros(slots * each, np.int64)
        self.free = list(range(slots * each))[::-1]

    def share(self, source: int, target: int, count: int) -> list[Copy]:
        """Let a slot's sequence be the first `count` tokens of another's, or of its own: of a last page that is not full it gets its own copy."""
        upto = -(-count // PAGE)
        if source == target:
            self._leave(target, upto)
        else:
            pages = self.table[source, :upto].copy()
            self.holders[pages] += 1
            self._leave(target, 0)
            self.table[target, :upto] = pages
        return self._own(target, upto - 1, count % PAGE) if count % PAGE else []

    def write(self, slots: np.ndarray, start: np.ndarray, take: np.ndarray) -> list[Copy]:
        """Let slots (each once) hold alone the pages of positions start .. start + take - 1, of which only what stands before `start` is kept."""
        first, last = start // PAGE, (start + take - 1) // PAGE
        page = self.table[slots, first]
        copies: list[Copy] = []
        for i in np.flatnonzero((last > first) | (page < 0) | (self.holders[page] > 1)):
            for n in range(int(first[i]), int(last[i]) + 1):
                copies += self._own(int(slots[i]), n, int(start[i]) % PAGE if n == first[i] else 0)
        return copies

    def clear(self) -> None:
        """Let go of every page."""
        for slot in range(len(self.table)):
            self._leave(slot, 0)

    def _own(self, slot: int, n: int, keep: int) -> list[Copy]:
        """Let a slot hold its n-th page alone, with the first `keep` positions as they are."""
        page = int(self.table[slot, n])
        if page >= 0 and self.holders[page] == 1:
            return []
        new = self.free.pop()
        self.table[slot, n], self.holders[new] = new, 1
        if page < 0:
            return []
        self.holders[page] -= 1
        return [Copy(page, new, keep)] if keep else []

    def _leave(self, slot: int, first: int) -> None:
        """Let go of a slot's pages from the `first` on."""
        pages = self.table[slot, first:]
        pages = pages[pages >= 0]
        self.holders[pages] -= 1
        self.free += pages[self.holders[pages] == 0].tolist()[::-1]
        self.table[slot, first:] = -1
