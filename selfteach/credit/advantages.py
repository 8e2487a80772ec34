"""Advantages by comparison of rewards: centred, normalised, whitened, or over a moving baseline.

"GRPO's advantage" is seven formulas in seven libraries, so no block has that name; a method names the formula that it
uses. Statistics are float64, and where all values are equal the advantage is exactly 0, not a rounding error over eps.
A reward that is NaN makes the advantages of everything it is compared with NaN.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ..core import BadValue, Column, Seq, Token, block, stateful
from ..core.blocks import Array
from . import segments as seg

Over = Literal["group", "batch", "none"]
Single = Literal["zero", "raw"]


def _segments(group: Array, by: str) -> tuple[Array, int]:
    if by not in ("group", "leave_one_out", "batch"):
        raise BadValue(f"by must be group, leave_one_out, batch or none, not {by!r}")
    index = np.zeros(len(group), np.int64) if by == "batch" else np.asarray(group)
    return index, seg.count(index)


def _with_singletons(values: Array, reward: Array, index: Array, n: int, singleton: str) -> Array:
    """The values, but for rows alone in their segment: 0 (singleton="zero"), or the reward itself ("raw")."""
    if singleton not in ("zero", "raw"):
        raise BadValue(f"singleton must be zero or raw, not {singleton!r}")
    one = np.bincount(index, minlength=n)[index] == 1
    single: np.ndarray = reward if singleton == "raw" else reward - reward  # r - r: 0, but NaN for NaN
    return np.where(one, single, values)


def _centred(rewards: Array, group: Array, by: str, singleton: str) -> Array:
    reward: np.ndarray = np.asarray(rewards, np.float64)
    if by == "none":
        return reward
    index, n = _segments(group, by)
    adv = reward - seg.mean(reward, index, n)[index]
    adv = np.where(seg.same(reward, index, n)[index], 0.0, adv)
    if by == "leave_one_out":
        rows = np.bincount(index, minlength=n)[index]
        adv = adv * rows / np.maximum(rows - 1, 1)
    return _with_singletons(adv, reward, index, n, singleton)


def leave_one_out(values: Array, index: Array) -> Array:
    """f64[N]: each value minus the mean of the others of its segment; exactly 0 where all are equal, or alone."""
    return _centred(values, index, "leave_one_out", "zero")


@block
def center(
    *,
    reward: Seq,
    group: Seq,
    by: Literal["group", "leave_one_out", "batch", "none"] = "group",
    singleton: Single = "zero",
) -> dict[str, Column]:
    """Advantage as the reward minus a baseline: the mean of the group (Dr. GRPO), or of its other members (RLOO).

        group          A_i = r_i - mean_j r_j                        Liu et al. 2025 (2503.20783)
        leave_one_out  A_i = r_i - mean_{j != i} r_j                 Kool et al. 2019; Ahmadian et al. 2024 (2402.14740)
        batch          A_i = r_i - mean of the whole batch
        none           A_i = r_i                                     Williams 1992

    Args: reward f64[S]; group i64[S], any order and sizes. singleton: a group of one gets 0, or its raw reward.
    Returns: adv f64[S]; exactly 0 where all of a group are equal; NaN for a whole group with a NaN in it.
    Equals: leave_one_out = n/(n-1) * group. Unbiased: leave_one_out, none; group is (n-1)/n of the gradient.
    Scope: group.

    >>> center(reward=[1, 0, 0, 1], group=[7, 7, 7, 8], by="leave_one_out")["adv"].values
    array([ 1. , -0.5, -0.5,  0. ])
    """
    return {"adv": Column("seq", _centred(reward, group, by, singleton))}


@block
def norm(
    *, reward: Seq, group: Seq, by: Over = "group", ddof: int = 1, eps: float = 1e-6, singleton: Single = "zero"
) -> dict[str, Column]:
    """Advantage as the reward in standard deviations from the mean: GRPO's (Shao et al. 2024, 2402.03300, 4.1.2).

        A_i = (r_i - mean_j r_j) / (std_j r_j + eps)        std over (n - ddof)

    Args: reward f64[S]; group i64[S]. by: over the group, the batch, or none (A = r). singleton: a group of one gets 0,
    or its raw reward (verl).
    Returns: adv f64[S]; exactly 0 where all of a group are equal, whatever eps is. Scope: group.
    Biased, as enumeration shows: with graded rewards in direction (a pair maximises the probability of beating the
    other), with rewards 0 and 1 only in how much one prompt weighs against another.

    >>> norm(reward=[1, 0, 0, 0, 9], group=[0, 0, 0, 0, 1], ddof=0, eps=0.0)["adv"].values.round(4)  # 0.75 / sqrt(3/16)
    array([ 1.7321, -0.5774, -0.5774, -0.5774,  0.    ])
    """
    reward, adv = np.asarray(reward, np.float64), _centred(reward, group, by, singleton)
    if by != "none":
        index, n = _segments(group, by)
        with np.errstate(invalid="ignore", divide="ignore"):
            scaled: np.ndarray = adv / (seg.std(reward, index, n, ddof)[index] + eps)
        scaled = np.where(seg.same(reward, index, n)[index], 0.0, scaled)
        adv = _with_singletons(scaled, reward, index, n, singleton)
    return {"adv": Column("seq", adv)}


@block
def center_and_scale(
    *, reward: Seq, group: Seq, mean: Over = "group", std: Over = "batch", eps: float = 1e-6
) -> dict[str, Column]:
    """Advantage as the reward less one mean, over one standard deviation: over the group or the batch (2508.08221).

        A_i = (r_i - mean_m r) / (std_s r + eps)        m, s: group, batch or none

    Args: reward f64[S]; group i64[S]. Returns: adv f64[S]; 0 where all that the mean is over are equal, or all that the
    standard deviation is over; NaN for whatever is compared with a NaN. Raises BadValue for another m or s. Equals:
    `norm` where both are the same. Scope: batch where either is.

    >>> given = {"reward": [1.0, 0.0, 1.0, 1.0], "group": [0, 0, 1, 1]}  # the batch's std is 1/2, a group's 0.7071
    >>> center_and_scale(**given, eps=0.0)["adv"].values, center_and_scale(**given, std="none")["adv"].values
    (array([ 1., -1.,  0.,  0.]), array([ 0.5, -0.5,  0. ,  0. ]))
    """
    reward, adv = np.asarray(reward, np.float64), np.asarray(reward, np.float64)
    for what, over in (("mean", mean), ("std", std)):
        if over not in ("group", "batch", "none"):
            raise BadValue(f"center_and_scale: {what} must be over group, batch or none, not {over!r}")
        if over == "none":
            continue
        index = np.zeros(len(reward), np.int64) if over == "batch" else np.asarray(group)
        n, same = seg.count(index), seg.same(reward, index, seg.count(index))[index]
        if what == "mean":
            adv = np.where(same, 0.0, adv - seg.mean(reward, index, n)[index])
        else:
            spread = np.where(same, 1.0, seg.std(reward, index, n)[index] + eps)
            adv = np.where(same, 0.0, adv / spread)
    return {"adv": Column("seq", adv)}


@block
def whiten(*, adv: Token, batch: Token, ddof: int = 1, eps: float = 1e-8, shift: bool = True) -> dict[str, Column]:
    """Whiten token advantages over the batch, as PPO for language models does after GAE (Ziegler et al. 2019).

        (A - m) / sqrt(v + eps)        m the mean, v the variance over (N - ddof); shift=False: A / sqrt(v + eps)

    Args: adv f64[N]; batch i64[N], named so that the batch is not split.
    Returns: adv f64[N]; 0 where all are equal (with shift).

    >>> whiten(adv=[1.0, 2.0, 3.0], batch=[0, 0, 0], eps=0.0)["adv"].values
    array([-1.,  0.,  1.])
    """
    adv = np.asarray(adv, np.float64)
    all_rows = np.zeros(len(adv), np.int64)
    if shift and (len(adv) <= ddof or seg.same(adv, all_rows, 1)[0]):
        return {"adv": Column("token", adv - adv)}
    mean, std = seg.mean(adv, all_rows, 1)[0], seg.std(adv, all_rows, 1, ddof)[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        return {"adv": Column("token", (adv - mean if shift else adv) / np.sqrt(std**2 + eps))}


@block
@stateful(lambda: {"mean": 0.0, "batches": 0})
def moving_baseline(
    *, reward: Seq, state: dict[str, Any], rate: float | None = None
) -> tuple[dict[str, Column], dict[str, Any]]:
    """REINFORCE's advantage over a moving average of earlier batches' rewards (Ahmadian et al. 2024, 2402.14740, 2.2).

        A_i = r_i - b
        b   = 1/T sum_t mean_i r_i(t)        over the T batches before this one
        b  <- b + rate (mean_i r_i - b)      after each batch, where `rate` is given

    Args: reward f64[S]; state {"mean", "batches"}. b is 0 before the first batch, and never contains this one, which
    keeps it unbiased.
    Returns: (adv f64[S], the next state). Scope: token.

    b is 1/4 for this batch, then (3 * 1/4 + 1/2) / 4.

    >>> moving_baseline(reward=[1.0, 0.0], state={"mean": 0.25, "batches": 3})
    ({'adv': Column(unit='seq', values=array([ 0.75, -0.25]))}, {'mean': 0.3125, 'batches': 4})
    """
    reward = np.asarray(reward, np.float64)
    adv = {"adv": Column("seq", reward - state["mean"])}
    if not len(reward):
        return adv, state
    new = float(reward.sum() / len(reward))
    share = 1 / (state["batches"] + 1) if rate is None or not state["batches"] else rate
    return adv, {"mean": state["mean"] + share * (new - state["mean"]), "batches": state["batches"] + 1}
