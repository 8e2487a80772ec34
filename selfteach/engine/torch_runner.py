"""The runner in torch: on any device, for every model with custom attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..model import quantities
from ..model.residual import changed
from ..model.transformer import Transformer
from . import sampler
from .kv_cache import CachedAttention, KVCache, round_up
from .sampler import ROW_MULTIPLE
from .step_steering import StepSteering


class TorchRunner:
    """A Runner in torch: a model and a cache of `slots` sequences."""

    backend = "torch"

    def __init__(self, model: Transformer, slots: int, length: int) -> None:
        self.model, self.needs_padding, self.length = model, True, length
        self.resize(slots)

    def resize(self, slots: int) -> None:
        """Change the number of slots, all of them empty."""
        weight = self.model.lm_head.weight
        self.cache: Any = None  # frees the old one first
        self.cache = KVCache(self.model.config, slots, self.length, weight.device, weight.dtype)

    def with_new_cache(self, slots: int, length: int) -> TorchRunner:
        """A runner of the same weights over another cache."""
        return TorchRunner(self.model, slots, length)

    def load(self) -> None:
        """Nothing to do: the model itself is used."""

    def share_prefix(self, source: int, target: int, count: int) -> int:
        """As Runner.share_prefix, by copying."""
        if source == target:
            return 0
        self.cache.copy(source, target, count)
        return count

    def clear(self, upto: int) -> None:
        """Set the first `upto` positions of every slot to zero."""
        self.cache.clear(upto)

    def forward(
        self,
        tokens: np.ndarray,
        slots: np.ndarray,
        start: np.ndarray,
        take: np.ndarray,
        steering: StepSteering | None = None,
    ) -> tuple[Tensor, np.ndarray]:
        """As Runner.forward: hidden [N, width] of every token, padded, and each piece's last row."""
        step = CachedAttention(self.cache, slots, start, take)
        n = len(step.slot)
        ids, position = np.zeros((2, 1, round_up(n, ROW_MULTIPLE)), np.int64)
        ids[0, :n], position[0, :n] = tokens[step.slot, step.position], step.position
        with changed(self.model, steering.changes(step.slot, step.position) if steering else {}):
            return self.model(step._to(ids), step, step._to(position))[0], step.last

    def logits(self, hidden: Tensor, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """As Runner.logits; rows are padded."""
        if len(rows) != len(hidden) or (np.diff(rows) != 1).any():
            hidden = hidden[torch.from_numpy(rows).to(hidden.device)]
        return hidden, self.model.logits(hidden).float()

    def draw(
        self, logits: Tensor, temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, uniform: np.ndarray
    ) -> sampler.Draw:
        """As `sampler.draw`."""
        return sampler.draw(logits, temperature, top_k, top_p, uniform)

    def logp(self, logits: Tensor, ids: np.ndarray) -> Tensor:
        """As Runner.logp."""
        return quantities.logprobs(logits, 1.0).gather(-1, torch.from_numpy(ids).to(logits.device)[:, None])[:, 0]
