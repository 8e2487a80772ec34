"""Credit from what the answers of a group have in common: the tree of their prefixes, valued by the rewards that pass through it."""

from __future__ import annotations

import numpy as np

from ..core import BadValue, Column, Seq, Token, block
from ..core.part import Array
from . import segments as seg


def prefix_values(id: Array, seq: Array, group: Array, reward: Array) -> Array:
    """f64[N]: the value of the prefix that ends with each row, the mean reward of the group's sequences that begin with it.

    Rows are learned tokens in order: what the environment said is no part of a prefix. NaN where a reward is. O(N log N).
    """
    id, seq, group, reward = np.asarray(id), np.asarray(seq), np.asarray(group), np.asarray(reward, np.float64)
    if len(seq) and (np.diff(seq) < 0).any():
        raise BadValue("prefix values: the rows of a sequence must stand together and in order")
    lengths = np.bincount(seq, minlength=len(reward))
    begin = np.cumsum(lengths) - lengths
    node, alive, out = group.copy(), np.flatnonzero(lengths), np.full(len(id), np.nan)
    depth = 0
    while len(alive):  # one level of the tree at a time, all groups at once: two sequences share a node if they share its parent and the token
        rows = begin[alive] + depth
        _, number = np.unique(np.stack([node[alive], id[rows]]), axis=1, return_inverse=True)
        number = number.reshape(-1)
        n = int(number.max()) + 1
        mean = seg.mean(reward[alive], number, n)
        exact = seg.same(reward[alive], number, n)  # of equals: the number itself, not a sum's residue
        out[rows] = np.where(exact[number], reward[alive], mean[number])
        node[alive] = number
        depth += 1
        alive = alive[lengths[alive] > depth]
    return out


@block
def add_branch_values(
    *, adv: Seq, reward: Seq, id: Token, seq: Token, group: Seq, ddof: int = 1, eps: float = 1e-6, rate: float = 1.0
) -> dict[str, Column]:
    """Add to an advantage what each token changed in the value of its prefix, in the group's standard deviations (TEMPO, 2509.18314).

        A_t = A + rate (V(s_{t+1}) - V(s_t)) / (std_j r_j + eps),   V(s) = mean reward of the group's answers that begin with s

    Args: adv, reward f64[S]; id, seq i64[N]; group i64[S]. V before the first token is the group's mean. ddof, eps: as the std that adv was
    made with. Returns: adv f64[N]; where no sibling turns off, what it was; NaN for a group with an unknown reward. Scope: group.
    Equals: adv at rate = 0.

    >>> # ab, ac, ad with rewards 1, 0, 0: V(root) = V(a) = 1/3; std over n - 1 = sqrt(1/3)
    >>> given = {"id": [7, 1, 7, 2, 7, 3], "seq": [0, 0, 1, 1, 2, 2], "group": np.array([0, 0, 0])}
    >>> add_branch_values(adv=np.zeros(3), reward=[1, 0, 0], **given, eps=0.0)["adv"].values.round(3)  # 2/3, -1/3 over 0.577
    array([ 0.   ,  1.155,  0.   , -0.577,  0.   , -0.577])
    """
    adv, reward, seq, group = np.asarray(adv, np.float64), np.asarray(reward, np.float64), np.asarray(seq), np.asarray(group)
    n = seg.count(group)
    after = prefix_values(id, seq, group, reward)
    first = np.append(True, np.diff(seq) != 0)[: len(seq)]
    before = np.where(first, seg.mean(reward, group, n)[group][seq], np.append(0.0, after[:-1])[: len(seq)])
    with np.errstate(invalid="ignore", divide="ignore"):
        change = (after - before) / (seg.std(reward, group, n, ddof)[group][seq] + eps)
    alike = seg.same(reward, group, n)[group][seq]
    return {"adv": Column("token", adv[seq] + rate * np.where(alike | (np.bincount(group, minlength=n)[group][seq] == 1), 0.0, change))}
