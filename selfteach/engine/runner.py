"""What computes a lane's steps, and which of those there are does it for a model."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.errors import BadValue
from ..model.transformer import Transformer
from . import graphs, native
from .cache import Plain
from .sampler import Draw

Kernel = Literal["auto", "native", "torch"]


class Runner(Protocol):
    """A model and the cache of its sequences. `how`: in words, what computes; `pads`: rows of logits must be a multiple of 8."""

    how: str
    model: Transformer
    pads: bool

    def fresh(self, slots: int, length: int) -> Runner: ...

    def resize(self, slots: int) -> None: ...

    def load(self) -> None: ...

    def share(self, source: int, target: int, count: int) -> int:
        """Let a slot's sequence be the first `count` tokens of another's, or of its own, before it goes on from there. -> tokens copied."""
        ...

    def clear(self, upto: int) -> None: ...

    def forward(self, tokens: np.ndarray, slots: np.ndarray, start: np.ndarray, take: np.ndarray) -> tuple[Tensor, np.ndarray]: ...

    def logits(self, hidden: Tensor, rows: np.ndarray) -> tuple[Tensor, Tensor]: ...

    def draw(self, logits: Tensor, temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, uniform: np.ndarray) -> Draw: ...

    def logp(self, logits: Tensor, ids: np.ndarray) -> Tensor: ...


def runner(model: Transformer, slots: int, length: int, device: torch.device, dtype: torch.dtype, kernel: Kernel = "auto") -> Runner:
    """The fastest way there is here to run a model: in C++ on a processor, otherwise in torch, whose `how` then says why.

    Raises BadValue where `kernel` asks for what cannot be had.
    """
    if kernel not in ("auto", "native", "torch"):
        raise BadValue(f"engine: kernel must be auto, native or torch, not {kernel!r}")
    why = "asked for" if kernel == "torch" else native.lacking(model, device, dtype)
    if why is None:
        model.to(device, torch.float32)
        return native.Native(native.Packed(model, dtype), slots, length)
    if kernel == "native":
        raise BadValue(f"engine: the native kernel cannot be used: {why}; ask for kernel auto or torch")
    model.to(device, dtype)
    if device.type == "cuda" and kernel == "auto":
        return graphs.Graphed(model, slots, length)
    plain = Plain(model, slots, length)
    plain.how = f"torch ({why})"
    return plain
