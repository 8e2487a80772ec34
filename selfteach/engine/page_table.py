"""The page table of the paged cache: sequences with a common prefix share its pages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernels.decode import PAGE


class PageCopy(NamedTuple):
    """A copy to do before a page is written: positions start .. stop - 1, from the part of one slot to another's."""

    source: int
    target: int
    start: int
    stop: int


class PageTable:
    """Sequences of at most `pages_per_slot` pages, in a cache with that many pages for each slot.

    table       i64[slots, pages_per_slot]: the slot whose part of the cache holds positions 64 n to 64 n + 63 of a
                slot's sequence; -1: none yet
    ref_counts  i64[slots, pages_per_slot]: the number of sequences that use a page; one is written only if that is 1

    A slot writes into its own part, or, while others still use that, into any free page of the same n. There is one: as
    long as a column of the table has an empty entry, or two equal ones, it names fewer than all slots.
    """

    def __init__(self, slots: int, pages_per_slot: int) -> None:
        self.table = np.full((slots, pages_per_slot), -1, np.int64)
        self.ref_counts = np.zeros((slots, pages_per_slot), np.int64)

    def share_prefix(self, source: int, target: int, count: int) -> list[PageCopy]:
        """Set a slot's sequence to the first `count` tokens of another's, or of its own.

        Full pages are shared; a last page that is not full is copied.
        """
        upto = -(-count // PAGE)
        if source == target:
            self._release_pages(target, upto)
        else:
            where = self.table[source, :upto].copy()
            self.ref_counts[where, np.arange(upto)] += 1
            self._release_pages(target, 0)
            self.table[target, :upto] = where
        return self._make_exclusive(target, upto - 1, count) if count % PAGE else []

    def write(self, slots: np.ndarray, start: np.ndarray, take: np.ndarray) -> list[PageCopy]:
        """Give slots (each once) sole use of the pages of positions start .. start + take - 1.

        What precedes `start` on them is copied.
        """
        first, last = start // PAGE, (start + take - 1) // PAGE
        where = self.table[slots, first]
        copies: list[PageCopy] = []
        for i in np.flatnonzero((last > first) | (where < 0) | (self.ref_counts[where, first] > 1)):
            for n in range(int(first[i]), int(last[i]) + 1):
                copies += self._make_exclusive(int(slots[i]), n, int(start[i]))
        return copies

    def clear(self) -> None:
        """Release every page."""
        self.table.fill(-1)
        self.ref_counts.fill(0)

    def _make_exclusive(self, slot: int, n: int, keep: int) -> list[PageCopy]:
        """Give a slot sole use of its n-th page, keeping the positions before `keep`."""
        old = int(self.table[slot, n])
        if old >= 0 and self.ref_counts[old, n] == 1:
            return []
        new = slot if not self.ref_counts[slot, n] else int((self.ref_counts[:, n] == 0).argmax())
        self.table[slot, n], self.ref_counts[new, n] = new, 1
        if old < 0:
            return []
        self.ref_counts[old, n] -= 1
        return [PageCopy(old, new, n * PAGE, keep)] if keep > n * PAGE else []

    def _release_pages(self, slot: int, first: int) -> None:
        """Release a slot's pages from the `first` on."""
        if first == self.table.shape[1] or self.table[slot, first] < 0:  # a sequence has its first pages, without gaps
            return
        n = np.flatnonzero(self.table[slot, first:] >= 0) + first
        self.ref_counts[self.table[slot, n], n] -= 1
        self.table[slot, first:] = -1
