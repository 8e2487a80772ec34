"""A sharded learner that records gradients, and terms that fail on one rank alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from selfteach.core import Batch, Token, Update, block
from selfteach.learner.sharded import ShardedLearner


@block
def learn_hungry(*, logp: Token, rows_at_most: int = 6) -> Token:
    """Memory runs out on the last rank where it gets more than some rows at once."""
    if len(logp) > rows_at_most and dist.get_rank() == dist.get_world_size() - 1:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return -logp


@block
def learn_broken(*, logp: Token) -> Token:
    """A term that raises on the last rank."""
    if dist.get_rank() == dist.get_world_size() - 1:
        raise ZeroDivisionError("no")
    return -logp


class RecordingShards(ShardedLearner):
    """As `support.battery.RecordingLearner`: its steps record the gradient and move no weight."""

    passes = True
    batches: list[tuple[Batch, Update]]
    gradient: dict[str, torch.Tensor]

    def backward(self, batch: Batch, update: Update) -> Mapping[str, float]:
        self.batches.append((batch, update))
        return super().backward(batch, update)

    def step(self, update: Update, lr: float) -> Mapping[str, float]:
        for name, g in self.gradients(update.params).items():
            self.gradient[name] = self.gradient.get(name, 0.0) + g
        super().step(update, 0.0)
        return {}


def recording(*given: Any) -> RecordingShards:
    """Such a learner, over the ranks that its settings name."""
    made = RecordingShards.started(*given)
    assert isinstance(made, RecordingShards)
    made.batches, made.gradient = [], {}
    return made
