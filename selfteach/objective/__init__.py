"""Objective: what the optimiser makes small. Terms in PyTorch, each a pure function of named columns that gives l, one per row of its unit.

Here live terms, weightings (which turn into the column w, in NumPy), and schedules of the history.
Not here: reductions (the learner sums w * l, and no function here takes the mean of a loss), models, optimisers, files, classes, and what
one paper alone needs (that is in its method's file). NaN in a column comes out as NaN.
"""

from .entropy import entropy_bonus
from .kl import kl, kl_where
from .likelihood import nll, uncertain_nll, weighted_nll
from .policy import clipped_importance, clipped_ratio, policy_gradient, sequence_ratio
from .preference import dpo
from .schedules import after, before, cosine, every, from_step, linear
from .segments import seq_mean, seq_sum
from .value import clipped_value_loss, value_loss
from .weigh import constant_length, prompt_mean, sequence_mean, sequence_sum, token_mean

__all__ = [
    "after",
    "before",
    "clipped_importance",
    "clipped_ratio",
    "clipped_value_loss",
    "constant_length",
    "cosine",
    "dpo",
    "entropy_bonus",
    "every",
    "from_step",
    "kl",
    "kl_where",
    "linear",
    "nll",
    "policy_gradient",
    "prompt_mean",
    "seq_mean",
    "seq_sum",
    "sequence_mean",
    "sequence_ratio",
    "sequence_sum",
    "token_mean",
    "uncertain_nll",
    "value_loss",
    "weighted_nll",
]
