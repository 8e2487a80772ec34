"""Assigners that say which sequences stay: column `keep`, 1 or 0 per sequence. The loop drops the zeros and counts them by block.

Where it cannot be said, `keep` is NaN and the row stays, so that training on its unknown reward raises instead of hiding it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ..core import Column, Seq, Token, address, block, remembers
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


@block
def keep_first(*, group: Seq, most: int = 32) -> dict[str, Column]:
    """Keep the first `most` sequences of each group: the others voted and teach nothing (TTRL's vote, then sample, 2504.16084, section 3.1).

    Put it before what takes the baseline, which is then that of those that stay. Args: group i64[S]. Returns: keep f64[S].

    >>> keep_first(group=[0, 1, 0, 0], most=2)["keep"].values
    array([1., 1., 1., 0.])
    """
    seen: Counter[int] = Counter()
    keep = np.ones(len(group))
    for i, g in enumerate(np.asarray(group).tolist()):
        keep[i] = seen[g] < most
        seen[g] += 1
    return {"keep": Column("seq", keep)}


@block
@remembers(lambda: {"mean": 0.0, "steps": 0})
def keep_spread(
    *, reward: Seq, group: Seq, state: dict[str, Any], share: float = 0.5, rate: float = 0.99, warm: int = 6
) -> tuple[dict[str, Column], dict[str, Any]]:
    """Keep groups whose rewards spread by a share of what groups have spread by so far (RLPR, 2506.18254, section 3.3).

        keep_g = [std_j r_j >= share * m],  m the mean of the first `warm` steps' mean std, then m <- rate m + (1 - rate) mean_g std_g

    Too easy and too hard questions have rewards alike, graded ones too; a fixed bound would not follow the rewards as they change. In the
    first `warm` steps all stay, and a step is measured after it was filtered. Args: reward f64[S]; group i64[S]. std over n - 1; a group
    of one stays. Returns: (keep f64[S], NaN for a group with an unknown reward; the next state). Scope: batch.

    >>> keep_spread(reward=[0, 1, 0.4, 0.5], group=[0, 0, 1, 1], state={"mean": 0.5, "steps": 6})[0]["keep"].values  # .7071 and .0707, .25
    array([1., 1., 0., 0.])
    """
    n = seg.count(group)
    if not n:
        return {"keep": Column("seq", np.zeros(0))}, state
    spread = np.where(seg.same(reward, group, n), 0.0, seg.std(reward, group, n))
    bound = share * state["mean"] if state["steps"] >= warm else 0.0
    alone = np.bincount(group, minlength=n) == 1
    unknown = np.isnan(seg.mean(reward, group, n))
    keep = np.where(unknown, np.nan, (spread >= bound) | alone)[group]
    known = spread[np.isfinite(spread) & ~alone]
    if len(known):
        weight = 1 / (state["steps"] + 1) if state["steps"] < warm else 1 - rate
        state = {"mean": float(state["mean"] + weight * (known.mean() - state["mean"])), "steps": state["steps"] + 1}
    return {"keep": Column("seq", keep)}, state
