"""Assigners that filter: the column `keep`, 1 or 0 per sequence. The loop drops the zeros and counts them by block.

Where the reward is unknown `keep` is NaN and the sequence stays, so that training on it raises instead of hiding it.
"""

from __future__ import annotations

import numpy as np

from ..core import Column, Seq, block
from . import segments as seg


@block
def drop_zero_variance_groups(
    *, reward: Seq, group: Seq, low: float = -np.inf, high: float = np.inf, closed: bool = False
) -> dict[str, Column]:
    """Drop groups of equal rewards, which have no gradient (DAPO's dynamic sampling, 2503.14476, eq. 11).

        keep_i = [min_j r_j < max_j r_j and low < mean_j r_j < high]

    Args: reward f64[S]; group i64[S]. closed: means equal to a bound are kept too.
    Returns: keep f64[S]; NaN for a group with an unknown reward. Scope: group.

    >>> drop_zero_variance_groups(reward=[1, 0, 1, 1], group=[0, 0, 1, 1])["keep"].values
    array([1., 1., 0., 0.])
    """
    n = seg.count(group)
    mean = seg.mean(reward, group, n)
    slack = 1e-9 if closed else 0.0  # means are rounded
    keep = ~seg.same(reward, group, n) & (mean > low - slack) & (mean < high + slack)
    return {"keep": Column("seq", np.where(np.isnan(mean), np.nan, keep)[group])}


@block
def right_only(*, reward: Seq, bound: float = 0.5) -> dict[str, Column]:
    """Rejection sampling: drop answers that are not right, and imitate the others (ReST-EM, 2312.06585, section 3).

        adv  = 1 where reward > bound, else 0
        keep = 0 where reward <= bound, else 1

    A sequence without a reward is kept with adv 0: it belongs to another loss stream, such as that of a value model.
    Args: reward f64[S]. Returns: adv, keep f64[S].
    """
    reward = np.asarray(reward, np.float64)
    right, unknown = reward > bound, np.isnan(reward)
    return {"adv": Column("seq", right.astype(np.float64)), "keep": Column("seq", (right | unknown).astype(np.float64))}
