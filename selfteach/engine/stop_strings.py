"""Stop strings on tokens: a table says which ids may complete one, so that only those are checked in Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class StopStrings:
    """The tables of stop strings in use: may_complete bool[tables, vocab]; table 0 has no stop strings."""

    def __init__(self, pieces: Sequence[bytes], vocab: int) -> None:
        self.pieces = [*pieces, *[b""] * (vocab - len(pieces))][:vocab]
        self.strings: list[tuple[bytes, ...]] = [()]
        self.may_complete = np.zeros((1, vocab), bool)

    def index_of(self, stop: tuple[str, ...]) -> int:
        """The index of the table of these stop strings, made on first use."""
        strings = tuple(s.encode() for s in stop)
        if strings not in self.strings:
            self.strings.append(strings)
            row = [any(_completes(piece, s) for s in strings) for piece in self.pieces]
            self.may_complete = np.concatenate([self.may_complete, np.array([row])])
        return self.strings.index(strings)

    def ended(self, number: int, turn: np.ndarray) -> bool:
        """Whether the last token of a turn (i64[n]) is the first after which its bytes contain a stop string.

        Earlier tokens did not complete one, so it ends inside the last token and only as many bytes before it matter.
        """
        strings = self.strings[number]
        longest = max(map(len, strings))
        tail = self.pieces[turn[-1]]
        need = len(tail) + longest - 1
        for i in turn[-2::-1]:
            if len(tail) >= need:
                break
            tail = self.pieces[i] + tail
        return any(s in tail for s in strings)


def _completes(piece: bytes, s: bytes) -> bool:
    """Whether a stop string could end inside this piece: the piece contains it, or begins with an end of it."""
    if s[-1] not in piece:
        return False
    return s in piece or any(piece.startswith(s[-n:]) for n in range(1, len(s)))
