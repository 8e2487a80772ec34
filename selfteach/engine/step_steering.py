"""Vectors that are added to hidden states of some sequences in an engine's step (`Sampling.steering`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class StepSteering:
    """Which sequences of a step get which vector, and after which layer.

    slot     i64[K]         of a sequence
    first    i64[K]         its first position that is steered: that of its context's last token
    layer    i64[K]         after which the vector is added
    vectors  f32[K, width]
    """

    slot: np.ndarray
    first: np.ndarray
    layer: np.ndarray
    vectors: np.ndarray

    def of_rows(self, slot: np.ndarray, position: np.ndarray) -> np.ndarray:
        """The vector of each row (of a slot, at a position), by its number: i64[N]; -1: none."""
        number = np.full(max(self.slot.max(), slot.max()) + 1, -1)
        number[self.slot] = np.arange(len(self.slot))
        found = number[slot]
        return np.where((found >= 0) & (position >= self.first[found]), found, -1)

    def changes(self, slot: np.ndarray, position: np.ndarray) -> dict[int, Callable[[Tensor], Tensor]]:
        """What it makes of each layer's output [1, N or more, width], for `model.residual.changed`."""
        found = self.of_rows(slot, position)

        def change(layer: int) -> Callable[[Tensor], Tensor]:
            rows = np.flatnonzero((found >= 0) & (self.layer[found] == layer))
            at, vectors = torch.from_numpy(rows), torch.from_numpy(self.vectors[found[rows]])[None]
            return lambda out: out.index_add(1, at.to(out.device), vectors.to(out))

        return {layer: change(layer) for layer in sorted(set(self.layer.tolist()))}
