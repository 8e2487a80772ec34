"""A curve drawn with characters: braille dots, two by four in a cell, or asterisks where a terminal has no braille."""

from __future__ import annotations

from collections.abc import Sequence

# Bits of the dots of a braille cell, by row from the top, left and right (Unicode, block U+2800).
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))

Points = Sequence[tuple[float, float]]


def curve_rows(
    points: Points, width: int, height: int, span: tuple[float, float], ascii_only: bool = False
) -> list[str]:
    """A curve as `height` rows of `width` characters, the highest value on top.

    points  (x, y), x ascending; x from 0 to the last one fills the width, points of one column are their mean
    span    the y of the lowest and of the highest row
    """
    across, down = (1, 1) if ascii_only else (2, 4)
    columns, rows = width * across, height * down
    grid = [[0] * width for _ in range(height)]
    low, high = span
    scale = (rows - 1) / (high - low) if high > low else 0.0
    before: tuple[int, int] | None = None
    for x, y in binned(points, columns):
        row = rows - 1 - round((min(max(y, low), high) - low) * scale)
        for at, level in line(before or (x, row), (x, row)):
            cell_row, dot_row = divmod(level, down)
            cell, dot = divmod(at, across)
            grid[cell_row][cell] |= 1 if ascii_only else DOTS[dot_row][dot]
        before = (x, row)
    draw = (lambda bits: "*" if bits else " ") if ascii_only else (lambda bits: chr(0x2800 + bits) if bits else " ")
    return ["".join(map(draw, row)) for row in grid]


def binned(points: Points, columns: int) -> list[tuple[int, float]]:
    """(column, mean of its values) for each column that has a point."""
    last = max((x for x, _ in points), default=0) or 1
    found: dict[int, list[float]] = {}
    for x, y in points:
        found.setdefault(round(x / last * (columns - 1)), []).append(y)
    return [(column, sum(values) / len(values)) for column, values in sorted(found.items())]


def line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots of a straight line, both ends too."""
    (x0, y0), (x1, y1) = start, end
    count = max(abs(x1 - x0), abs(y1 - y0))
    if not count:
        return [end]
    return [(round(x0 + (x1 - x0) * i / count), round(y0 + (y1 - y0) * i / count)) for i in range(count + 1)]


def span_of(values: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest of some values, a little apart where they are one."""
    low, high = min(values), max(values)
    margin = 0.0 if high > low else max(abs(high), 1.0) * 0.05
    return low - margin, high + margin
