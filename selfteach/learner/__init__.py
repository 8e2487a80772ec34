"""Learners: forward passes for columns, gradients and optimiser steps on batches, checkpoints of weights and optimiser.

Here are parameter groups with their heads, micro-batches, live columns, the sum of loss terms, the optimiser, and
`LocalLearner`, the reference that every other learner is tested against. Losses, advantages and loss weights are blocks
in objective/ and credit/; sampling, schedules over the run, methods and tasks are not known here.
"""

from typing import TYPE_CHECKING

from .settings import LearnerSettings, learning_rate

if TYPE_CHECKING:
    from .local import LocalLearner

__all__ = ["LearnerSettings", "LocalLearner", "learning_rate"]


def __getattr__(name: str) -> "type[LocalLearner]":
    if name == "LocalLearner":  # imported on first access: the settings alone need no torch
        from .local import LocalLearner

        return LocalLearner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
