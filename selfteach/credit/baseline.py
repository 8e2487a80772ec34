"""Assigners that compare rewards: centre, scale, both, whitening and a moving baseline.

"GRPO's advantage" is seven formulas in seven libraries, so none of these is called by it; a method says which parts it takes.
Statistics are float64, and where nothing differs the answer is exactly 0, not a residue over eps. A reward that is NaN makes the
advantages of everything it is compared with NaN.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ..core import BadValue, Column, Seq, Token, block, remembers
from ..core.part import Array
from . import segments as seg

Over = Literal["group", "batch", "none"]
Single = Literal["zero", "raw"]


def _segments(group: Array, by: str) -> tuple[Array, int]:
    if by not in ("group", "leave_one_out", "batch"):
        raise BadValue(f"by must be group, leave_one_out, batch or none, not {by!r}")
    index = np.zeros(len(group), np.int64) if by == "batch" else np.asarray(group)
    return index, seg.count(index)


def _alone(values: Array, reward: Array, index: Array, n: int, singleton: str) -> Array:
    """What a row gets that has nothing to be compared with: 0, or its reward as it is."""
    if singleton not in ("zero", "raw"):
        raise BadValue(f"singleton must be zero or raw, not {singleton!r}")
    one = np.bincount(index, minlength=n)[index] == 1
    own: np.ndarray = reward if singleton == "raw" else reward - reward  # r - r: 0, but NaN for NaN
    return np.where(one, own, values)


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
    return _alone(adv, reward, index, n, singleton)


def leave_one_out(values: Array, index: Array) -> Array:
    """Each value over the mean of the others of its segment; exactly 0 where they agree, or where there are no others."""
    return _centred(values, index, "leave_one_out", "zero")


def _scaled(adv: Array, reward: Array, group: Array, by: str, ddof: int, eps: float, singleton: str) -> Array:
    adv, reward = np.asarray(adv, np.float64), np.asarray(reward, np.float64)
    if by == "none":
        return adv
    index, n = _segments(group, by)
    with np.errstate(invalid="ignore", divide="ignore"):
        out: np.ndarray = adv / (seg.std(reward, index, n, ddof)[index] + eps)
    out = np.where(seg.same(reward, index, n)[index], adv - adv, out)
    return _alone(out, reward, index, n, singleton)


@block
def center(
    *, reward: Seq, group: Seq, by: Literal["group", "leave_one_out", "batch", "none"] = "group", singleton: Single = "zero"
) -> dict[str, Column]:
    """Advantage as the reward over a baseline: the mean of the siblings, all of them (Dr. GRPO) or the others (RLOO).

        group          A_i = r_i - mean_j r_j                        Liu et al. 2025 (2503.20783)
        leave_one_out  A_i = r_i - mean_{j != i} r_j                 Kool et al. 2019; Ahmadian et al. 2024 (2402.14740)
        batch          the mean of the whole batch;   none   A = r   Williams 1992

    Args: reward f64[S]; group i64[S], any order and sizes. singleton: a group of one gets 0, or its raw reward.
    Returns: adv f64[S]; exactly 0 where all of a group agree; NaN for a whole group with a NaN in it.
    Equals: leave_one_out = n/(n-1) * group. Unbiased: leave_one_out, none; group is (n-1)/n of the gradient. Scope: group.

    >>> center(reward=[1, 0, 0, 1], group=[7, 7, 7, 8], by="leave_one_out")["adv"].values
    array([ 1. , -0.5, -0.5,  0. ])
    """
    return {"adv": Column("seq", _centred(reward, group, by, singleton))}


@block
def scale(
    *, adv: Seq, reward: Seq, group: Seq, by: Over = "group", ddof: int = 1, eps: float = 1e-6, singleton: Single = "zero"
) -> dict[str, Column]:
    """Advantage over the standard deviation of the rewards it was made from.

        A_i / (std_j r_j + eps)        std over (n - ddof); by: the group, the batch, or none (A as it is)

    Args: adv, reward f64[S]; group i64[S]. singleton: a group of one gets 0, or its raw reward (verl).
    Returns: adv f64[S]; exactly 0 where all rewards agree, whatever eps is. Biased: what differs less counts for more. Scope: group.

    >>> scale(adv=[0.75, -0.25, -0.25, -0.25], reward=[1, 0, 0, 0], group=[0, 0, 0, 0], eps=0.0)["adv"].values
    array([ 1.5, -0.5, -0.5, -0.5])
    """
    return {"adv": Column("seq", _scaled(adv, reward, group, by, ddof, eps, singleton))}


@block
def norm(*, reward: Seq, group: Seq, by: Over = "group", ddof: int = 1, eps: float = 1e-6, singleton: Single = "zero") -> dict[str, Column]:
    """Centre and scale at once, over the same rows: the outcome advantage of GRPO (Shao et al. 2024, 2402.03300, section 4.1.2).

        A_i = (r_i - mean_j r_j) / (std_j r_j + eps)

    Args: reward f64[S]; group i64[S]; by, ddof, eps, singleton as in `scale`.
    Returns: adv f64[S]; 0 where all of a group agree. Equals: center() then scale(). Scope: group.
    Biased, by enumeration: with graded rewards in direction (a pair climbs the chance of beating its sibling), with rewards 0 and 1 only
    in how much one prompt counts against another.

    >>> norm(reward=[1, 0, 0, 0, 9], group=[0, 0, 0, 0, 1], ddof=0, eps=0.0)["adv"].values.round(4)  # 0.75 / sqrt(3/16)
    array([ 1.7321, -0.5774, -0.5774, -0.5774,  0.    ])
    """
    adv = _centred(reward, group, by, singleton)
    return {"adv": Column("seq", _scaled(adv, reward, group, by, ddof, eps, singleton))}


@block
def lowered(*, adv: Seq, by: float = 0.1) -> dict[str, Column]:
    """Advantage over a baseline that is lower by `by`: adv + by, so that good answers count for more than bad ones and a group of equals
    is held to (Arnal et al. 2025, AsymRE, 2506.20520). Args: adv f64[S]. Returns: adv f64[S]."""
    return {"adv": Column("seq", np.asarray(adv, np.float64) + by)}


@block
def tilted(*, adv: Seq, temperature: float = 1.0) -> dict[str, Column]:
    """Advantage times exp(adv / temperature): good answers count for more (Yao et al. 2025, RED-Weight, 2509.24203).

    Args: adv f64[S]. Returns: adv f64[S].

    >>> tilted(adv=[np.log(2), -np.log(2)])["adv"].values.round(4)  # log 2 * 2, -log 2 / 2
    array([ 1.3863, -0.3466])
    """
    adv = np.asarray(adv, np.float64)
    return {"adv": Column("seq", adv * np.exp(adv / temperature))}


@block
def batch_whiten(*, adv: Seq, seq: Token, batch: Token, floor: float = 1e-8) -> dict[str, Column]:
    """Whiten sequence advantages over all tokens of the batch, so that a long answer counts as often as it has tokens.

        (A - m) / sqrt(max(v, floor)),  m = sum_i L_i A_i / N,  v = sum_i L_i (A_i - m)^2 / N       (L_i tokens; OpenRLHF, REINFORCE++)

    Args: adv f64[S]; seq, batch i64[N]. Returns: adv f64[S]; 0 where all agree. Scope: batch. Paper: Hu 2025 (2501.03262).

    >>> batch_whiten(adv=[1.0, -1.0], seq=[0, 0, 0, 1], batch=[0, 0, 0, 0])["adv"].values.round(4)  # m = 1/2, v = 3/4
    array([ 0.5774, -1.7321])
    """
    per_token = np.asarray(adv, np.float64)[seq]
    white = _whitened(per_token, 0, floor=floor)
    out = np.full(len(adv), np.nan)
    out[seq] = white
    return {"adv": Column("seq", out)}


@block
def whiten(*, adv: Token, batch: Token, ddof: int = 1, eps: float = 1e-8, shift: bool = True) -> dict[str, Column]:
    """Whiten token advantages over the batch, as PPO for language models does after GAE (Ziegler et al. 2019).

        (A - m) / sqrt(v + eps)        v over (N - ddof); shift=False leaves m in

    Args: adv f64[N]; batch i64[N], named so that the batch stays together. Returns: adv f64[N]; 0 where all agree (with shift).

    >>> whiten(adv=[1.0, 2.0, 3.0], batch=[0, 0, 0], eps=0.0)["adv"].values
    array([-1.,  0.,  1.])
    """
    adv = np.asarray(adv, np.float64)
    white = _whitened(adv, ddof, eps=eps, shift=shift)
    return {"adv": Column("token", white)}


def _whitened(adv: Array, ddof: int, eps: float = 0.0, floor: float = 0.0, shift: bool = True) -> Array:
    all_rows = np.zeros(len(adv), np.int64)
    mean = seg.mean(adv, all_rows, 1)[0]
    if shift and (len(adv) <= ddof or seg.same(adv, all_rows, 1)[0]):
        return adv - adv
    deviation = np.sqrt(np.maximum(seg.std(adv, all_rows, 1, ddof)[0] ** 2 + eps, floor))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (adv - mean if shift else adv) / deviation


@block
@remembers(lambda: {"mean": 0.0, "batches": 0})
def moving_baseline(*, reward: Seq, state: dict[str, Any], rate: float | None = None) -> tuple[dict[str, Column], dict[str, Any]]:
    """REINFORCE's advantage over a moving average of the rewards of earlier batches (Ahmadian et al. 2024, 2402.14740, section 2.2).

        A_i = r_i - b,   b = 1/T sum_t mean_i r_i(t) over the T batches before this one;   with `rate`: b <- b + rate (mean r - b)

    Args: reward f64[S]; state {"mean", "batches"}. b is 0 before the first batch, and never contains this one, which keeps it unbiased.
    Returns: (adv f64[S], the next state). Scope: token.

    >>> moving_baseline(reward=[1.0, 0.0], state={"mean": 0.25, "batches": 3})  # b stays 1/4 here; then (3 * 1/4 + 1/2) / 4
    ({'adv': Column(unit='seq', values=array([ 0.75, -0.25]))}, {'mean': 0.3125, 'batches': 4})
    """
    reward = np.asarray(reward, np.float64)
    adv = {"adv": Column("seq", reward - state["mean"])}
    if not len(reward):
        return adv, state
    new = float(reward.sum() / len(reward))
    share = 1 / (state["batches"] + 1) if rate is None or not state["batches"] else rate
    return adv, {"mean": state["mean"] + share * (new - state["mean"]), "batches": state["batches"] + 1}
