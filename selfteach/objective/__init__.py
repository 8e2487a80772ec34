"""Objective: what the optimiser makes small. Terms in PyTorch, each a pure function of named columns that gives l, one per row of its unit.

Here live terms, weightings (which turn into the column w, in NumPy), and schedules of the history.
Not here: reductions (the learner sums w * l, and no function here takes the mean of a loss), models, optimisers, files, classes, and what
one paper alone needs (that is in its method's file). NaN in a column comes out as NaN.
"""

from .bellman import soft_bellman, uniform_bellman
from .bounds import balanced_clip, bounded_moment, ranged_reinforce
from .entropy import entropy_bonus
from .kl import kl, kl_where
from .likelihood import implicit_negative, nll, uncertain_nll, weighted_nll
from .policy import clipped_importance, clipped_ratio, policy_gradient, sequence_ratio
from .preference import dpo
from .regression import advantage_regression, verdict_regression
from .schedules import after, before, cosine, every, from_step, linear
from .segments import seq_mean, seq_sum
from .value import clipped_value_loss, success_loss, value_loss
from .weigh import class_balanced, constant_length, prompt_mean, sequence_mean, sequence_sum, token_mean

__all__ = [
    "advantage_regression",
    "after",
    "balanced_clip",
    "before",
    "bounded_moment",
    "class_balanced",
    "clipped_importance",
    "clipped_ratio",
    "clipped_value_loss",
    "constant_length",
    "cosine",
    "dpo",
    "entropy_bonus",
    "every",
    "from_step",
    "implicit_negative",
    "kl",
    "kl_where",
    "linear",
    "nll",
    "policy_gradient",
    "prompt_mean",
    "ranged_reinforce",
    "seq_mean",
    "seq_sum",
    "sequence_mean",
    "sequence_ratio",
    "sequence_sum",
    "soft_bellman",
    "success_loss",
    "token_mean",
    "uncertain_nll",
    "uniform_bellman",
    "value_loss",
    "verdict_regression",
    "weighted_nll",
]
