"""Loss weights: how much a row counts in the sum that is minimised. NumPy, over the whole optimiser batch.

A block of loss weights gives, for each sequence, the weight of one of its tokens; a row of a coarser unit has the sum
of its tokens' weights. They are computed before micro-batches are formed, so sum(w * l) does not depend on the split.
"""

from __future__ import annotations

import numpy as np

from ..core import Seq, block


@block
def token_mean(*, length: Seq) -> Seq:
    """Equal weight for every token: 1 / N (DAPO, 2503.14476, eq. 8).

    Args: length i64[S], learned tokens. Returns: f64[S], per token.

    >>> token_mean(length=np.array([1, 3]))
    array([0.25, 0.25])
    """
    return np.full(len(length), 1.0 / length.sum())


@block
def sequence_mean(*, length: Seq) -> Seq:
    """Equal weight for every sequence: 1 / (S len) (GRPO, 2402.03300, eq. 3).

    Args: length i64[S]. Returns: f64[S], per token.

    >>> sequence_mean(length=np.array([1, 4]))
    array([0.5  , 0.125])
    """
    return 1.0 / (len(length) * length)


@block
def sequence_sum(*, length: Seq) -> Seq:
    """The sum over a sequence's tokens, the mean over sequences: 1 / S (REINFORCE).

    Args: length i64[S]. Returns: f64[S], per token.
    """
    return np.full(len(length), 1.0 / len(length))


@block
def constant_length(*, length: Seq, limit: int = 512) -> Seq:
    """`sequence_sum` divided by a constant length: 1 / (S limit) (Dr. GRPO, 2503.20783).

    Args: length i64[S]. Returns: f64[S], per token.
    """
    return np.full(len(length), 1.0 / (len(length) * limit))


@block
def prompt_mean(*, length: Seq, group: Seq) -> Seq:
    """Equal weight for every group, and for the tokens within it: 1 / (G tokens of the group).

    Args: length, group i64[S]. Returns: f64[S], per token.

    >>> prompt_mean(length=np.array([1, 3, 2]), group=np.array([0, 0, 1]))
    array([0.125, 0.125, 0.25 ])
    """
    tokens = np.bincount(group, weights=length)
    return 1.0 / (np.count_nonzero(tokens) * tokens[group])


@block
def class_balanced(*, reward: Seq, length: Seq, above: float = 0.5) -> Seq:
    """Equal total weight for the right and for the wrong answers: 1 / (2 n_class len) (LaSeR, 2510.14943, 3.4).

    Args: reward f64[S], right where reward >= `above`; length i64[S].
    Returns: f64[S], per token. Where all answers are of one class their total weight is 1/2.

    >>> class_balanced(reward=np.array([1.0, 0.0, 0.0]), length=np.array([1, 1, 1]))
    array([0.5 , 0.25, 0.25])
    """
    right = reward >= above
    class_size = np.where(right, np.count_nonzero(right), np.count_nonzero(~right))
    return 1.0 / (2 * class_size * length)
