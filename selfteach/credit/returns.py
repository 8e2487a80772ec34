"""Assigners that spread reward over the tokens of a sequence: generalised advantage estimation, and rewards made per token.

Rows are learned tokens in order; what the environment said is no row, so it is no time step either.
"""

from __future__ import annotations

import numpy as np

from ..core import BadValue, Column, Seq, Step, Token, block
from ..core.part import Array
from . import segments as seg


def _estimate(value: Array, reward: Array, seq: Array, gamma: float, lam: float) -> dict[str, Column]:
    value, reward, seq = np.asarray(value, np.float64), np.asarray(reward, np.float64), np.asarray(seq)
    if len(seq) and (np.diff(seq) < 0).any():
        raise BadValue("gae: the rows of a sequence must stand together and in order")
    final = np.append(np.diff(seq) != 0, True)[: len(seq)]
    after = np.where(final, 0.0, np.append(value[1:], 0.0)[: len(seq)])
    delta = reward + gamma * after - value
    adv = delta.copy()
    # Backwards from every sequence's end at once: one step of Python per place, not per token.
    lengths = np.bincount(seq)
    ends, lengths = np.cumsum(lengths)[lengths > 0] - 1, lengths[lengths > 0]
    for back in range(1, int(lengths.max()) if len(lengths) else 0):
        at = ends[lengths > back] - back
        adv[at] += gamma * lam * adv[at + 1]
    return {"adv": Column("token", adv), "returns": Column("token", adv + value)}


def _at_the_end(reward: Array, seq: Array) -> Array:
    out = np.zeros(len(seq))
    where = seg.last(seq, len(reward))
    out[where[where >= 0]] = np.asarray(reward, np.float64)[where >= 0]
    return out


@block
def gae(*, critic_value: Token, reward: Seq, seq: Token, gamma: float = 1.0, lam: float = 0.95) -> dict[str, Column]:
    """Generalised advantage estimation over learned tokens, the outcome paid at the last one (Schulman et al. 2015, 1506.02438, eq. 16).

        delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lam A_{t+1},  R_t = A_t + V_t;  V = 0 after the end

    Args: critic_value f64[N], the value before each token; reward f64[S]; seq i64[N].
    Returns: adv, returns f64[N]. Equals: reward-to-go at lam = 1, V = 0. Scope: seq.

    >>> gae(critic_value=[0.5, 0.5], reward=[1.0], seq=[0, 0], lam=0.5)["adv"].values  # last 1 - 1/2; first 0 + 1/2 * 1/2
    array([0.25, 0.5 ])
    """
    return _estimate(critic_value, _at_the_end(reward, seq), seq, gamma, lam)


@block
def gae_shaped(*, critic_value: Token, token_reward: Token, seq: Token, gamma: float = 1.0, lam: float = 0.95) -> dict[str, Column]:
    """`gae` for rewards paid at every token: token_reward f64[N], as `kl_per_token` makes it. Returns adv, returns f64[N]."""
    return _estimate(critic_value, token_reward, seq, gamma, lam)


@block
def kl_per_token(*, reward: Seq, old_logp: Token, ref_logp: Token, seq: Token, beta: float = 0.05) -> dict[str, Column]:
    """The outcome at the last token and a penalty at each for leaving the reference (Ouyang et al. 2022, 2203.02155, eq. 2).

        r_t = -beta (old_logp_t - ref_logp_t) + [t is last] r

    Args: reward f64[S]; old_logp, ref_logp f64[N]; seq i64[N]. Returns: token_reward f64[N]; sums to `kl_in_reward`.
    """
    penalty = np.asarray(old_logp, np.float64) - np.asarray(ref_logp, np.float64)
    return {"token_reward": Column("token", _at_the_end(reward, seq) - beta * penalty)}


@block
def paid_at_end(*, reward: Seq, seq: Token) -> dict[str, Column]:
    """The outcome as a reward per token: paid at the last, 0 before. Args: reward f64[S]; seq i64[N]. Returns: token_reward f64[N].

    >>> paid_at_end(reward=[1.0, 3.0], seq=[0, 0, 1])["token_reward"].values
    array([0., 1., 3.])
    """
    return {"token_reward": Column("token", _at_the_end(reward, seq))}


@block
def paid_at_steps(*, reward: Step, step: Token) -> dict[str, Column]:
    """Rewards of turns per token: each paid at the last token of its step, for scores placed at the ends of turns; one that is unknown is 0.

    Args: reward f64[K]; step i64[N]. Returns: token_reward f64[N].
    """
    return {"token_reward": Column("token", _at_the_end(np.nan_to_num(np.asarray(reward, np.float64)), step))}
