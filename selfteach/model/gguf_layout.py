"""The counts and lengths in a GGUF file's header, checked against the file's real size before anything is allocated."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # type -> bytes
STRING, ARRAY = 8, 9
MOST_DIMENSIONS = 8


class _Header:
    """A place in a file's bytes that only moves forward, and never beyond the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.order = data, 0, "<"

    def skip(self, size: int) -> None:
        """Move forward. Raises ValueError beyond the end."""
        if size > len(self.data) - self.at:
            raise ValueError(f"byte {self.at} is said to be followed by {size} more, and {len(self.data)} is its end")
        self.at += size

    def number(self, kind: str) -> int:
        """The next whole number: I of 4 bytes, Q of 8."""
        size = struct.calcsize(kind)
        self.skip(size)
        return struct.unpack_from(self.order + kind, self.data, self.at - size)[0]

    def value(self, kind: int, depth: int = 0) -> None:
        """Skip a value of a type."""
        if kind == STRING:
            self.skip(self.number("Q"))
        elif kind == ARRAY and depth < 4:
            inner, count = self.number("I"), self.number("Q")
            if inner in SCALARS:
                self.skip(count * SCALARS[inner])
                return
            if count > (len(self.data) - self.at) // 8:  # each has a length of its own
                raise ValueError(f"a list of {count} at byte {self.at} does not fit the file")
            for _ in range(count):
                self.value(inner, depth + 1)
        elif kind in SCALARS:
            self.skip(SCALARS[kind])
        else:
            raise ValueError(f"no value is of the type {kind}")


def check_layout(file: Path) -> None:
    """Raise ValueError where a count, length, dimension or offset in a GGUF file leads beyond its end."""
    with file.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header = _Header(data)
        header.skip(4)
        if not header.number("I") & 0xFFFF:
            header.order = ">"
        tensors, fields = header.number("Q"), header.number("Q")
        for _ in range(fields):
            header.skip(header.number("Q"))
            header.value(header.number("I"))
        for _ in range(tensors):
            header.skip(header.number("Q"))
            if (dimensions := header.number("I")) > MOST_DIMENSIONS:
                raise ValueError(f"a tensor has {dimensions} dimensions")
            elements = 1
            for _ in range(dimensions):
                elements *= header.number("Q")
            header.number("I")
            # No type has less than a bit an element.
            if elements // 8 + header.number("Q") > len(data):
                raise ValueError(f"a tensor of {elements} elements does not fit the file")
