"""Assigners that say which sequences stay: column `keep`, 1 or 0 per sequence. The loop drops the zeros and counts them by block.

Where it cannot be said, `keep` is NaN and the row stays, so that training on its unknown reward raises instead of hiding it.
"""

from __future__ import annotations

import numpy as np

from ..core import Column, Seq, Token, address, block
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
def keep_balanced(*, reward: Seq, group: Seq, id: Token, seq: Token) -> dict[str, Column]:
    """Keep no more answers below the group's mean than there are others: the rest are dropped (Yao et al. 2025, RED-Drop, 2509.24203).

    Which, is drawn by the answer's own tokens, so that neither order nor names matter. Put it before what takes the baseline, which is
    then that of those that stay. Args: reward f64[S]; group i64[S]; id, seq i64[N]. Returns: keep f64[S]; NaN for a group with an unknown reward.
    """
    reward, group = np.asarray(reward, np.float64), np.asarray(group)
    mean = seg.mean(reward, group, seg.count(group))[group]
    below = reward < mean
    keep = np.where(np.isnan(mean), np.nan, 1.0)
    ids = np.split(np.asarray(id), np.flatnonzero(np.diff(seq)) + 1)
    for g in np.unique(group[below]):
        bad = np.flatnonzero(below & (group == g))
        spare = 2 * len(bad) - np.count_nonzero(group == g)
        if spare > 0:
            order = sorted(bad, key=lambda i: address.key("balance", *ids[i].tolist()))
            keep[order[:spare]] = 0.0
    return {"keep": Column("seq", keep)}
