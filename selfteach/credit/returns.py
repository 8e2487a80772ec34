"""Advantages and returns per token: generalised advantage estimation, and rewards per token.

Rows are the learned tokens in order; the environment's tokens are no rows, so they are no time steps either.
"""

from __future__ import annotations

import numpy as np

from ..core import BadValue, Column, Seq, Token, block, provides
from ..core.blocks import Array
from . import segments as seg


def _estimate(value: Array, reward: Array, seq: Array, gamma: float, lam: float) -> dict[str, Column]:
    value, reward, seq = np.asarray(value, np.float64), np.asarray(reward, np.float64), np.asarray(seq)
    if len(seq) and (np.diff(seq) < 0).any():
        raise BadValue("gae: the rows of a sequence are not contiguous and in order; sort the batch by sequence")
    final = np.append(np.diff(seq) != 0, True)[: len(seq)]
    after = np.where(final, 0.0, np.append(value[1:], 0.0)[: len(seq)])
    adv = reward_to_go(reward + gamma * after - value, seq, gamma * lam)
    return {"adv": Column("token", adv), "returns": Column("token", adv + value)}


def reward_to_go(reward: Array, seq: Array, gamma: float) -> Array:
    """f64[N]: each row's reward plus the discounted rewards after it in its sequence; rows of a sequence in order.

    >>> reward_to_go([1.0, 2.0, 4.0], [0, 0, 1], 0.5)
    array([2., 2., 4.])
    """
    out = np.array(reward, np.float64)
    # Backwards from every sequence's end at once: one step of Python per place, not per token.
    lengths = np.bincount(seq)
    ends, lengths = np.cumsum(lengths)[lengths > 0] - 1, lengths[lengths > 0]
    for back in range(1, int(lengths.max()) if len(lengths) else 0):
        at = ends[lengths > back] - back
        out[at] += gamma * out[at + 1]
    return out


def at_last_token(reward: Array, seq: Array) -> Array:
    """f64[N]: the reward of each sequence at its last row, 0 elsewhere."""
    out = np.zeros(len(seq))
    where = seg.last(seq, len(reward))
    out[where[where >= 0]] = np.asarray(reward, np.float64)[where >= 0]
    return out


@block
@provides("returns")
def gae(*, critic_value: Token, reward: Seq, seq: Token, gamma: float = 1.0, lam: float = 0.95) -> dict[str, Column]:
    """Generalised advantage estimation, the reward at the last token (Schulman et al. 2015, 1506.02438, eq. 16).

        delta_t = r_t + gamma V_{t+1} - V_t        V = 0 after the end
        A_t     = delta_t + gamma lam A_{t+1}
        R_t     = A_t + V_t

    Args: critic_value f64[N], the value before each token; reward f64[S]; seq i64[N].
    Returns: adv, returns f64[N]. Equals: reward-to-go at lam = 1, V = 0. Scope: seq.

    >>> gae(critic_value=[0.5, 0.5], reward=[1.0], seq=[0, 0], lam=0.5)["adv"].values  # 0 + 1/2 * 1/2, 1 - 1/2
    array([0.25, 0.5 ])
    """
    return _estimate(critic_value, at_last_token(reward, seq), seq, gamma, lam)


@block
@provides("returns")
def gae_shaped(
    *, critic_value: Token, token_reward: Token, seq: Token, gamma: float = 1.0, lam: float = 0.95
) -> dict[str, Column]:
    """`gae` for a reward at every token.

    Args: critic_value, token_reward f64[N], the latter from `kl_per_token`, for example; seq i64[N].
    Returns: adv, returns f64[N]. Scope: seq.
    """
    return _estimate(critic_value, token_reward, seq, gamma, lam)


@block
@provides("token_reward")
def kl_per_token(*, reward: Seq, old_logp: Token, ref_logp: Token, seq: Token, beta: float = 0.05) -> dict[str, Column]:
    """The reward at the last token, and a KL penalty at every token (Ouyang et al. 2022, 2203.02155, eq. 2).

        r_t = -beta (old_logp_t - ref_logp_t) + 1[t is last] r

    Args: reward f64[S]; old_logp, ref_logp f64[N]; seq i64[N].
    Returns: token_reward f64[N]; its sum over a sequence is the reward of `kl_in_reward`.
    """
    penalty = np.asarray(old_logp, np.float64) - np.asarray(ref_logp, np.float64)
    return {"token_reward": Column("token", at_last_token(reward, seq) - beta * penalty)}
