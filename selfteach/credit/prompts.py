"""What belongs to a prompt, not to one of its answers: how often it was solved, and the place where nothing is said yet."""

from __future__ import annotations

import numpy as np

from ..core import Column, Seq, Token, block
from . import segments as seg


@block
def group_mean(*, reward: Seq, group: Seq) -> dict[str, Column]:
    """The mean reward of the group, as the column `target` of each of its sequences: what a value model of prompts is to say.

    Args: reward f64[S]; group i64[S]. Returns: target f64[S]; NaN for a group with an unknown reward. Scope: group.

    >>> group_mean(reward=[1, 0, 1, 1], group=[0, 0, 1, 1])["target"].values
    array([0.5, 0.5, 1. , 1. ])
    """
    return {"target": Column("seq", seg.mean(reward, group, seg.count(group))[group])}


@block
def first_rows(*, seq: Token) -> Token:
    """True for the first learned token of each sequence (for `Update.where`): what stands before it is the prompt.

    Args: seq i64[N], ascending. Returns: bool[N].

    >>> first_rows(seq=[0, 0, 0, 1, 1]).tolist()
    [True, False, False, True, False]
    """
    seq = np.asarray(seq)
    return np.concatenate([[True], seq[1:] != seq[:-1]]) if len(seq) else np.zeros(0, bool)
