"""Assigners that mark sequences for a term of their own: a column of 1 and 0, by which the term multiplies."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..core import BadValue, Column, Seq, block
from . import segments as seg


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
