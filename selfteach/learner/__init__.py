"""Turning batches into weights: forward for the columns asked, backward, step; weights and optimiser states in and out.

What lives here: weight groups and their heads, micro-batches, live columns, the sum of terms, the optimiser, and `LocalLearner`, the
plain reference that every other learner is tested against. What may not: losses, advantages and weightings (they are blocks in
objective/ and credit/), sampling, schedules over the run, and anything that knows of a method, a task or the loop.
"""

from .local import LocalLearner
from .settings import Settings, rate

__all__ = ["LocalLearner", "Settings", "rate"]
