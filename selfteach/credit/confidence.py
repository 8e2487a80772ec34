"""Assigners that read how sure the policy was of what it said, and of what it says of itself."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..core import BadValue, Column, History, Seq, Token, block
from . import segments as seg


@block
def own_probability(
    *, logp: Token, seq: Token, group: Seq, by: Literal["length", "group", "none"] = "length", smooth: float = 0.1
) -> dict[str, Column]:
    """The probability of a sequence under the policy itself, as its advantage: no label, no siblings' baseline (RLSC, 2506.06395, eq. 6 and 7).

        A_i = p_i + smooth,    p = exp(1/L sum_t logp_t)  by length      p = exp(sum_t logp_t - max_j of the group)  by group
                               p = exp(sum_t logp_t)      by none, the paper's own, which is 0 for all but short answers

    Args: logp f64[N], as the step began; seq i64[N]; group i64[S]. smooth: adds the likelihood of all
    samples alike, whose gradient is 0 on average. Returns: adv f64[S]; NaN where a log-probability is unknown. Scope: group.

    >>> half = np.log(0.5)
    >>> rows = dict(logp=[half, half, half], seq=[0, 0, 1], group=[0, 0], smooth=0.0)
    >>> [own_probability(**rows, by=by)["adv"].values.tolist() for by in ("length", "group", "none")]
    [[0.5, 0.5], [0.5, 1.0], [0.25, 0.5]]
    """
    n = len(group)
    total = seg.total(logp, seq, n)
    if by == "length":
        total = total / np.maximum(np.bincount(seq, minlength=n), 1)
    elif by == "group":
        total = total - seg.greatest(total, group, seg.count(group))[group]
    elif by != "none":
        raise BadValue(f"own_probability: by must be length, group or none, not {by!r}")
    return {"adv": Column("seq", np.exp(total) + smooth)}


@block
def self_mixed(
    *, adv: Seq, self_reward: Seq, group: Seq, history: History, share: float = 0.1, gate: float = 0.1, step: int = 0
) -> dict[str, Column]:
    """Mix in the advantage that the policy's verdict on itself would give (LaSeR, 2510.14943, section 3.4).

        A <- (1 - share) A + share (s - mean_j s_j) / std_j s_j   where std_j s_j > gate,   s = clip(self_reward, 0, 1)

    Args: adv, self_reward f64[S], NaN for an answer that was not asked about, which counts as 0; group i64[S]. std over n - 1.
    step: until then the advantage stays as it is. Returns: adv f64[S]. Scope: group.

    >>> rows = dict(adv=[1.0, -1.0], self_reward=[0.0, 1.0], group=[0, 0], history=History())
    >>> self_mixed(**rows)["adv"].values.round(4)  # 0.9 - 0.1 * (1/2) / sqrt(1/2)
    array([ 0.8293, -0.8293])
    """
    adv = np.asarray(adv, np.float64)
    if history.step < step:
        return {"adv": Column("seq", adv)}
    own = np.asarray(self_reward, np.float64)
    own = np.clip(np.where(np.isnan(own), 0.0, own), 0.0, 1.0)
    n = seg.count(group)
    spread = seg.std(own, group, n)[group]
    with np.errstate(invalid="ignore", divide="ignore"):
        mixed = (1 - share) * adv + share * (own - seg.mean(own, group, n)[group]) / spread
    return {"adv": Column("seq", np.where(spread > gate, mixed, adv))}
