"""Objectives: loss terms (PyTorch), loss weights (NumPy), and schedules of the history.

A term is a pure function of named columns that returns l, one value per row of its unit; loss weights are the column w.
The learner sums w * l, so no function here takes the mean of a loss. Not here: models, optimisers, files, classes, and
what one paper alone needs (it is in its method's file). NaN in a column gives NaN.
"""

from .entropy import entropy_bonus
from .kl import kl
from .likelihood import nll, weighted_nll
from .loss_weights import class_balanced, constant_length, prompt_mean, sequence_mean, sequence_sum, token_mean
from .policy import clipped_importance, clipped_ratio, policy_gradient, sequence_ratio
from .preference import bradley_terry, dpo
from .regression import advantage_regression
from .schedules import after, before, cosine, every, linear
from .segments import next_row, seq_mean, seq_sum
from .value import clipped_value_loss, success_loss, value_loss

__all__ = [
    "advantage_regression",
    "after",
    "before",
    "bradley_terry",
    "class_balanced",
    "clipped_importance",
    "clipped_ratio",
    "clipped_value_loss",
    "constant_length",
    "cosine",
    "dpo",
    "entropy_bonus",
    "every",
    "kl",
    "linear",
    "next_row",
    "nll",
    "policy_gradient",
    "prompt_mean",
    "seq_mean",
    "seq_sum",
    "sequence_mean",
    "sequence_ratio",
    "sequence_sum",
    "success_loss",
    "token_mean",
    "value_loss",
    "weighted_nll",
]
