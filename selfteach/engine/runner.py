"""The protocol of runners, which compute an engine's steps, and the choice of one for a model."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..core.errors import BadValue
from ..model.transformer import Transformer
from .cuda_graphs import CudaGraphRunner
from .native_runner import NativeRunner, PackedWeights, unsupported_reason
from .sampler import Draw
from .step_steering import StepSteering
from .torch_runner import TorchRunner

Kernel = Literal["auto", "native", "torch"]


class Runner(Protocol):
    """A model and the cache of its sequences.

    backend        what computes, in words
    needs_padding  rows of logits must be a multiple of 8
    """

    backend: str
    model: Transformer
    needs_padding: bool

    def with_new_cache(self, slots: int, length: int) -> Runner:
        """A runner of the same weights over another cache."""
        ...

    def resize(self, slots: int) -> None:
        """Change the number of slots, all of them empty."""
        ...

    def load(self) -> None:
        """Take over the model's weights, after they changed in place."""
        ...

    def share_prefix(self, source: int, target: int, count: int) -> int:
        """Set a slot's sequence to the first `count` tokens of another's, or of its own; returns the tokens copied."""
        ...

    def clear(self, upto: int) -> None:
        """Drop the cache, of which the first `upto` positions of the slots were written."""
        ...

    def forward(
        self,
        tokens: np.ndarray,
        slots: np.ndarray,
        start: np.ndarray,
        take: np.ndarray,
        steering: StepSteering | None = None,
    ) -> tuple[Tensor, np.ndarray]:
        """Compute pieces of the slots' tokens (i64[slots, length]) and write them to the cache.

        A piece is `take` tokens of a slot from position `start` on; steering: vectors added to some of them.

        Returns hidden [N, width] of every token, piece after piece, and the row of each piece's last token.
        """
        ...

    def logits(self, hidden: Tensor, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """The hidden states of some rows, and their logits: [R, width], f32[R, vocab]."""
        ...

    def draw(
        self, logits: Tensor, temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, uniform: np.ndarray
    ) -> Draw:
        """As `sampler.draw`."""
        ...

    def logp(self, logits: Tensor, ids: np.ndarray) -> Tensor:
        """Log-probabilities f32[R] of ids i64[R] at temperature 1, with the bits that `draw` gives."""
        ...


@runtime_checkable
class MultiStepRunner(Runner, Protocol):
    """A runner that can draw several tokens of each sequence in one call."""

    def steps_at_once(self, rows: int) -> int:
        """How many tokens of each of `rows` sequences `generate` may draw in a call, at least 1."""
        ...

    def generate(
        self,
        tokens: np.ndarray,
        logp: np.ndarray,
        slots: np.ndarray,
        known: np.ndarray,
        limit: np.ndarray,
        temperature: np.ndarray,
        uniform: np.ndarray,
        stops: tuple[np.ndarray, np.ndarray],
        enough: int,
    ) -> int:
        """Draw tokens of the slots whose cache lacks their last token only, as `forward`, `logits` and `draw` would,
        and write them and their logp to `tokens` and `logp` [slots, length].

        known, limit  i64[n]  tokens of each sequence, raised in place, and how many they may become
        uniform       f64[n, steps]  for each token
        stops         bool[tables, vocab], i64[n]: ids after which a sequence may have stopped, and its table

        A sequence that may have stopped, or is at its limit, gets no more; all end when `enough` have. Returns the
        steps done; -1 where a distribution is not finite.
        """
        ...


def make_runner(
    model: Transformer, slots: int, length: int, device: torch.device, dtype: torch.dtype, kernel: Kernel = "auto"
) -> Runner:
    """The fastest runner for a model: in C++ on a CPU, otherwise in torch, whose `backend` then says why.

    Raises BadValue where `kernel` is unknown or not available.
    """
    if kernel not in ("auto", "native", "torch"):
        raise BadValue(f"engine: kernel must be auto, native or torch, not {kernel!r}")
    why = "as configured" if kernel == "torch" else unsupported_reason(model, device, dtype)
    if why is None:
        model.to(device, torch.float32)
        return NativeRunner(PackedWeights(model, dtype), slots, length)
    if kernel == "native":
        raise BadValue(f"engine: the native kernel cannot be used: {why}; take kernel auto or torch")
    model.to(device, dtype)
    if device.type == "cuda" and kernel == "auto":
        return CudaGraphRunner(model, slots, length)
    plain = TorchRunner(model, slots, length)
    plain.backend = f"torch ({why})"
    return plain
