"""How well numbers rank right things above wrong ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def auc(right: Sequence[float] | np.ndarray, wrong: Sequence[float] | np.ndarray) -> float | None:
    """The chance that a number of the first kind is above one of the second, equals counting one half.

    The area under the receiver operating characteristic (Mann and Whitney's U over the number of pairs): 1 where every
    right one is above every wrong one, 1/2 where the numbers say nothing. None where one kind is missing.

    >>> auc([0.9, 0.4], [0.4, 0.1]), auc([1.0], [])
    (0.875, None)
    """
    high, low = np.asarray(right, np.float64), np.sort(np.asarray(wrong, np.float64))
    if not len(high) or not len(low):
        return None
    below, up_to = np.searchsorted(low, high, "left"), np.searchsorted(low, high, "right")
    return float((below + up_to).sum() / (2 * len(high) * len(low)))
