"""Segment statistics: `x` f[N] per row, `index` i64[N] the segment of each row, `n` segments. NumPy, float64.

Rows are in any order, segments of any size. NaN and inf affect the segment that holds them and no other. An empty
segment has the total 0 and the mean NaN. These are helper functions, not blocks.
"""

from __future__ import annotations

import numpy as np

from ..core.blocks import Array


def count(index: Array) -> int:
    """The number of segments of an index: its largest number plus one, 0 for no rows."""
    return int(np.max(index)) + 1 if len(index) else 0


def total(x: Array, index: Array, n: int) -> Array:
    """f64[n]: sum of each segment.

    >>> total([1, 2, 4], [0, 1, 0], 2)
    array([5., 2.])
    """
    return np.bincount(index, weights=np.asarray(x, np.float64), minlength=n)


def mean(x: Array, index: Array, n: int) -> Array:
    """f64[n]: mean of each segment; NaN for an empty one."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return total(x, index, n) / np.bincount(index, minlength=n)


def std(x: Array, index: Array, n: int, ddof: int = 1) -> Array:
    """f64[n]: sqrt(sum (x - mean)^2 / (rows - ddof)) of each segment, in two passes; NaN for at most ddof rows.

    >>> std([1, 0, 0, 0, 7], [0, 0, 0, 0, 1], 2)  # mean 1/4: (9/16 + 3/16) / 3 = 1/4
    array([0.5, nan])
    """
    x = np.asarray(x, np.float64)
    rows = np.bincount(index, minlength=n)
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = total((x - mean(x, index, n)[index]) ** 2, index, n)
        return np.sqrt(squares / np.where(rows > ddof, rows - ddof, np.nan))


def least(x: Array, index: Array, n: int) -> Array:
    """f64[n]: the smallest row of each segment; NaN if it holds one, inf if it is empty."""
    out = np.full(n, np.inf)
    with np.errstate(invalid="ignore"):
        np.minimum.at(out, index, np.asarray(x, np.float64))
    return out


def greatest(x: Array, index: Array, n: int) -> Array:
    """f64[n]: the largest row of each segment; NaN if it holds one, -inf if it is empty."""
    return -least(-np.asarray(x, np.float64), index, n)


def same(x: Array, index: Array, n: int) -> Array:
    """bool[n]: whether all rows of a segment are equal, by comparison, which has no rounding error.

    >>> same([0.9, 0.9, 1, 0], [0, 0, 1, 1], 2)
    array([ True, False])
    """
    return least(x, index, n) >= greatest(x, index, n)


def last(index: Array, n: int) -> Array:
    """i64[n]: the last row of each segment, in the order of the rows; -1 for an empty one."""
    out = np.full(n, -1)
    out[index] = np.arange(len(index))
    return out


def place(index: Array) -> Array:
    """i64[N]: the number of each row in its segment, from 0; the rows of a segment stand together.

    >>> place([0, 0, 0, 2, 2])
    array([0, 1, 2, 0, 1])
    """
    rows = np.arange(len(index))
    begins = np.diff(index, prepend=np.asarray(index)[:1]) != 0
    return rows - np.maximum.accumulate(np.where(begins, rows, 0))


def next_known(x: Array, index: Array) -> Array:
    """f64[N]: the value of the next row of the same segment whose value is known, itself included; NaN after the last.

    Rows of a segment are contiguous and in order.

    >>> next_known([np.nan, 2.0, np.nan, 3.0], [0, 0, 0, 1])
    array([ 2.,  2., nan,  3.])
    """
    x, index = np.asarray(x, np.float64), np.asarray(index)
    rows = np.arange(len(x))
    at = np.minimum.accumulate(np.where(np.isnan(x), len(x), rows)[::-1])[::-1]
    inside = np.minimum(at, max(0, len(x) - 1))
    found = (at < len(x)) & (index[inside] == index)
    return np.where(found, x[inside], np.nan) if len(x) else x
