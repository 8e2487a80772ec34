"""Credit steered by what a token does to the group's right answers."""

from __future__ import annotations

import numpy as np

from ..core import Column, Seq, Token, block
from . import segments as seg


@block
def steer_by_influence(
    *, adv: Seq, influence: Token, reward: Seq, seq: Token, group: Seq, p: float = 0.1, threshold: bool = True
) -> dict[str, Column]:
    """Learn from the tokens that move the group's right answers most, and more (p > 0) or less from those that make them likelier (2510.03669).

        T_t = sign(A) s_t,   A_t = [|T_t| > tau] (1 + sign(T_t) p) A,   tau = the least over right answers of their mean s

    Args: adv, reward f64[S]; influence s f64[N]; seq i64[N]; group i64[S]. Right is a reward above the group's mean. threshold: without it
    tau is 0 and every token that moves them at all counts. Returns: adv f64[N]. Scope: group.

    >>> given = {"seq": [0, 0, 1, 1], "group": np.array([0, 0]), "reward": np.array([1.0, 0.0])}
    >>> steer_by_influence(adv=np.array([1.0, -1.0]), influence=[1.0, 3.0, 4.0, -5.0], **given)["adv"].values  # tau = 2
    array([ 0. ,  1.1, -0.9, -1.1])
    """
    reward, seq, group = np.asarray(reward, np.float64), np.asarray(seq), np.asarray(group)
    n, own = seg.count(group), np.asarray(adv, np.float64)[seq]
    moved = np.sign(own) * np.asarray(influence, np.float64)
    right = reward > seg.mean(reward, group, n)[group]
    mean = seg.mean(influence, seq, len(reward))
    tau = seg.least(np.where(right, mean, np.inf), group, n)[group][seq] if threshold else np.zeros(len(seq))
    return {"adv": Column("token", np.where(np.abs(moved) > tau, (1 + np.sign(moved) * p) * own, own * 0.0))}
