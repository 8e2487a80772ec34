"""Assigners that change the reward of a sequence before it is compared: a KL penalty, a price for length."""

from __future__ import annotations

import numpy as np

from ..core import BadValue, Column, Seq, Token, block
from . import segments as seg


@block
def kl_in_reward(*, reward: Seq, old_logp: Token, ref_logp: Token, seq: Token, beta: float = 0.05) -> dict[str, Column]:
    """Fold the divergence from the reference into the reward of the sequence (Ahmadian et al. 2024, 2402.14740, eq. 3).

        R = r - beta sum_t (old_logp_t - ref_logp_t)

    Args: reward f64[S]; old_logp, ref_logp f64[N]; seq i64[N]. Returns: reward f64[S]. It is a constant to the gradient: the estimator
    k1 here is unbiased for the KL of whole sequences, in value and, through the policy gradient, in gradient. Scope: seq.

    >>> kl_in_reward(reward=[1.0], old_logp=[-1.0, -1.0], ref_logp=[-2.0, -3.0], seq=[0, 0], beta=0.1)["reward"].values  # 1 - 0.1 * 3
    array([0.7])
    """
    gap = np.asarray(old_logp, np.float64) - np.asarray(ref_logp, np.float64)
    return {"reward": Column("seq", np.asarray(reward, np.float64) - beta * seg.total(gap, seq, len(reward)))}


@block
def overlong(*, reward: Seq, seq: Token, limit: int = 512, cache: int = 128, scale: float = 1.0) -> dict[str, Column]:
    """Soft overlong punishment: a price that grows over the last `cache` tokens before `limit` (DAPO, 2503.14476, eq. 13).

        R = r + scale * (0 if L <= limit - cache, (limit - cache - L) / cache up to limit, -1 beyond)        L: learned tokens

    Args: reward f64[S]; seq i64[N]. Returns: reward f64[S]. The paper has limit = 20480 with cache = 4096. Scope: seq.

    >>> overlong(reward=[1.0, 1.0], seq=[0] * 6 + [1] * 9, limit=8, cache=4)["reward"].values  # (4 - 6) / 4, -1
    array([0.5, 0. ])
    """
    if not 0 < cache <= limit:
        raise BadValue(f"overlong: cache must be above 0 and at most the limit {limit}, not {cache}")
    length = np.bincount(seq, minlength=len(reward))
    return {"reward": Column("seq", np.asarray(reward, np.float64) + scale * np.clip((limit - cache - length) / cache, -1.0, 0.0))}


@block
def self_aligned(
    *, reward: Seq, logp: Token, logp_blind: Token, seq: Token, alpha: float = 0.2, low: float = -1.0, high: float = 1.0
) -> dict[str, Column]:
    """Add the share of the answer's perplexity that the question takes away: answers that only this question explains, and no more than that
    (SAR, 2509.05489, eq. 3 and 4).

        R = r + alpha clip((ppl(a) - ppl(a|q)) / ppl(a), low, high)
        ppl(a|q) = exp(-1/n sum_t logp_t),   ppl(a) the same without the question;   so it is 1 - exp(mean (logp_blind - logp))

    Args: reward f64[S]; logp, logp_blind f64[N] (of `each_blind`); seq i64[N]. Returns: reward f64[S]. Scope: seq.

    >>> rows = dict(logp=[-1.0, -1.0], logp_blind=[-1.0 - np.log(4), -1.0], seq=[0, 0])  # mean difference log 2: 1 - 1/2
    >>> self_aligned(reward=[1.0], **rows)["reward"].values
    array([1.1])
    """
    gap = seg.mean(np.asarray(logp_blind, np.float64) - np.asarray(logp, np.float64), seq, len(reward))
    with np.errstate(over="ignore"):
        own = np.clip(1.0 - np.exp(gap), low, high)
    return {"reward": Column("seq", np.asarray(reward, np.float64) + alpha * own)}
