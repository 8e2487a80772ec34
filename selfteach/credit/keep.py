"""Assigners that say which sequences stay: column `keep`, 1 or 0 per sequence. The loop drops the zeros and counts them by block.

Where it cannot be said, `keep` is NaN and the row stays, so that training on its unknown reward raises instead of hiding it.
"""

from __future__ import annotations

import numpy as np

from ..core import Column, Seq, block
from . import segments as seg


@block
def keep_informative(*, reward: Seq, group: Seq, low: float = -np.inf, high: float = np.inf, closed: bool = False) -> dict[str, Column]:
    """Keep groups whose rewards differ: the others have no gradient (DAPO's dynamic sampling, 2503.14476, eq. 11).

        keep_i = [min_j r_j < max_j r_j and low < mean_j r_j < high]

    Args: reward f64[S]; group i64[S]. closed: the bounds themselves pass. Returns: keep f64[S]; NaN for a group with an unknown reward.
    Scope: group.

    >>> keep_informative(reward=[1, 0, 1, 1], group=[0, 0, 1, 1])["keep"].values
    array([1., 1., 0., 0.])
    """
    n = seg.count(group)
    mean = seg.mean(reward, group, n)
    slack = 1e-9 if closed else 0.0  # means are rounded
    keep = ~seg.same(reward, group, n) & (mean > low - slack) & (mean < high + slack)
    return {"keep": Column("seq", np.where(np.isnan(mean), np.nan, keep)[group])}


@block
def drop_truncated(*, truncated: Seq) -> dict[str, Column]:
    """Drop answers that ended because there was no room (DAPO's overlong filtering, 2503.14476, section 3.4).

    Args: truncated f64[S], 1 where the trajectory's status is length or limit: `each` gives it. Returns: keep f64[S] = 1 - truncated.
    """
    return {"keep": Column("seq", 1.0 - np.asarray(truncated, np.float64))}
