"""Credit from rewards along the way: implicit ones per token, and values at the ends of steps."""

from __future__ import annotations

import numpy as np

from ..core import Column, Seq, Step, Token, block
from ..core.part import Array
from . import segments as seg
from .baseline import leave_one_out


@block
def implicit_process(
    *,
    prm_logp: Token,
    ref_logp: Token,
    reward: Seq,
    seq: Token,
    group: Seq,
    beta: float = 0.05,
    process: float = 1.0,
    outcome: float = 1.0,
    gamma: float = 1.0,
) -> dict[str, Column]:
    """Advantage from an implicit process reward and the outcome, each against its own leave-one-out baseline (PRIME, 2502.01456, eq. 5).

        r_t = beta (prm_logp_t - ref_logp_t),   m_j = mean_t r_t of sibling j
        A_t = process sum_{s >= t} gamma^(s-t) (r_s - mean_{j != i} m_j) + outcome (R_i - mean_{j != i} R_j)

    Args: prm_logp, ref_logp f64[N]; reward f64[S]; seq i64[N]; group i64[S]. Returns: adv f64[N]; 0 for a group of one. Scope: group.
    Equals: `center` by leave_one_out at process = 0.
    """
    seq, group = np.asarray(seq), np.asarray(group)
    own = beta * (np.asarray(prm_logp, np.float64) - np.asarray(ref_logp, np.float64))
    mean = seg.mean(own, seq, len(group))
    others = mean - leave_one_out(mean, group)  # m_i - (m_i - mean of the others)
    alone = np.bincount(group)[group] == 1
    to_go = _to_go(np.where(alone[seq], 0.0, own - others[seq]), seq, gamma)
    return {"adv": Column("token", process * to_go + outcome * leave_one_out(np.asarray(reward, np.float64), group)[seq])}


@block
def step_values(*, reward: Seq, start_value: Seq, step_value: Token, seq: Token) -> dict[str, Column]:
    """Advantage of each step as the change in value over it, from values at the ends of steps (VinePPO, 2410.01679, eq. 5).

        A_t = V(s_{k+1}) - V(s_k) for the tokens t of step k;   after the last step the reward stands in for V

    Args: reward, start_value (of the prompt) f64[S]; step_value f64[N], at the last token of a step the value of what follows it, elsewhere
    NaN: a value that could not be had joins two steps into one; seq i64[N]. Returns: adv f64[N], whose sum over steps is reward - start_value.
    Scope: seq.

    >>> at = [np.nan, 0.75, np.nan, np.nan]  # two steps of two tokens: 1/2 -> 3/4 -> 1
    >>> step_values(reward=[1.0], start_value=[0.5], step_value=at, seq=[0, 0, 0, 0])["adv"].values
    array([0.25, 0.25, 0.25, 0.25])
    """
    seq = np.asarray(seq)
    value, rows = np.array(step_value, np.float64), np.arange(len(seq))
    last = seg.last(seq, len(reward))
    value[last[last >= 0]] = np.asarray(reward, np.float64)[last >= 0]
    ends = ~np.isnan(value)
    ends[last[last >= 0]] = True
    following = np.minimum.accumulate(np.where(ends, rows, len(rows))[::-1])[::-1]
    # The end before a row: of its own sequence, else the sequence's beginning (-1).
    before = np.maximum.accumulate(np.append(-1, np.where(ends, rows, -1)[:-1]))[: len(rows)]
    mine = (before >= 0) & (seq[before] == seq)
    return {"adv": Column("token", value[following] - np.where(mine, value[before], np.asarray(start_value, np.float64)[seq]))}


@block
def center_by_turn(*, reward: Step, seq: Step, group: Step, gamma: float = 0.0) -> dict[str, Column]:
    """Advantage of each turn: what it is paid from there on, over the mean of the siblings' turns of the same number.

        G_k = r_k + gamma G_{k+1},   A_ik = G_ik - mean_{j != i} G_jk

    Args: reward f64[K] (NaN: nothing was paid there; a sequence with a score that failed does not come here, core.places.unscored); seq, group
    i64[K], of each turn. gamma = 0: a turn answers for itself alone.
    Returns: adv f64[K]; 0 where no sibling has that turn. Scope: group.

    >>> turns = {"seq": [0, 0, 1, 1], "group": [0, 0, 0, 0]}
    >>> center_by_turn(reward=[0.0, 11.0, 1.0, 1.0], **turns)["adv"].values
    array([ -1.,  10.,   1., -10.])
    """
    seq = np.asarray(seq)
    paid = _to_go(np.nan_to_num(np.asarray(reward, np.float64)), seq, gamma)
    rows = np.arange(len(seq))
    number = rows - np.maximum.accumulate(np.where(np.append(True, np.diff(seq) != 0)[: len(seq)], rows, 0))
    _, same = np.unique(np.stack([np.asarray(group), number]), axis=1, return_inverse=True)
    return {"adv": Column("step", leave_one_out(paid, same.reshape(-1)))}


def _to_go(reward: Array, seq: Array, gamma: float) -> Array:
    """Discounted sum of each row's reward and those after it in its sequence."""
    out = np.array(reward, np.float64)
    if gamma == 0:
        return out
    lengths = np.bincount(seq)
    ends, lengths = np.cumsum(lengths)[lengths > 0] - 1, lengths[lengths > 0]
    for back in range(1, int(lengths.max()) if len(lengths) else 0):
        at = ends[lengths > back] - back
        out[at] += gamma * out[at + 1]
    return out
