"""Assigners that say which sequences stay: column `keep`, 1 or 0 per sequence. The loop drops the zeros and counts them by block.

Where it cannot be said, `keep` is NaN and the row stays, so that training on its unknown reward raises instead of hiding it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..core import BadValue, Column, Seq, block
from . import segments as seg


@block
def keep_informative(*, reward: Seq, group: Seq, low: float = -np.inf, high: float = np.inf) -> dict[str, Column]:
    """Keep groups whose rewards differ: the others have no gradient (DAPO's dynamic sampling, 2503.14476, eq. 11).

        keep_i = [min_j r_j < max_j r_j and low < mean_j r_j < high]

    Args: reward f64[S]; group i64[S]. Returns: keep f64[S]; NaN for a group with an unknown reward. Scope: group.

    >>> keep_informative(reward=[1, 0, 1, 1], group=[0, 0, 1, 1])["keep"].values
    array([1., 1., 0., 0.])
    """
    n = seg.count(group)
    mean = seg.mean(reward, group, n)
    keep = ~seg.same(reward, group, n) & (mean > low) & (mean < high)
    return {"keep": Column("seq", np.where(np.isnan(mean), np.nan, keep)[group])}


@block
def drop_truncated(*, truncated: Seq) -> dict[str, Column]:
    """Drop answers that ended because there was no room (DAPO's overlong filtering, 2503.14476, section 3.4).

    Args: truncated f64[S], 1 where the trajectory's status is length or limit: `each` gives it. Returns: keep f64[S] = 1 - truncated.
    """
    return {"keep": Column("seq", 1.0 - np.asarray(truncated, np.float64))}


@block
def mark_wrong(*, reward: Seq, group: Seq, by: Literal["seq", "group"] = "seq", right: float = 1.0) -> dict[str, Column]:
    """Mark what was not solved, for a term that teaches there alone (KDRL's reward-guided masking, 2506.02208).

        where_i = [r_i < right]    by group: [r_j < right for all j of the group]

    Args: reward f64[S]; group i64[S]. Returns: where f64[S], 1 or 0; NaN where a reward that decides is unknown. Scope: group.

    >>> mark_wrong(reward=[1, 0, 0, 0], group=[0, 0, 1, 1], by="group")["where"].values
    array([0., 0., 1., 1.])
    """
    if by not in ("seq", "group"):
        raise BadValue(f"mark_wrong: by must be seq or group, not {by!r}")
    reward = np.asarray(reward, np.float64)
    best = reward if by == "seq" else seg.greatest(reward, np.asarray(group), seg.count(group))[group]
    return {"where": Column("seq", np.where(np.isnan(best), np.nan, best < right))}
