"""Faster ways for what stands between the matrix products, lent to the transformer while a learner works."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor


class Kernels(Protocol):
    """Each gives None for what it cannot do; the plain way then does it."""

    def norm(self, x: Tensor, weight: Tensor, eps: float, shift: float, narrow: bool) -> tuple[Tensor, Tensor] | None:
        """x / rms(x) * (shift + weight) over the last dimension, in bf16 where `narrow`; and x, to go on with."""
        ...

    def linear(self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], plus: Tensor | None = None) -> tuple[Tensor, ...] | None:
        """x @ weight.T + bias for each of some weights, under autocast; `plus`: onto that, of one weight."""
        ...

    def add(self, x: Tensor, z: Tensor) -> Tensor | None:
        """x + z."""
        ...

    def gated(self, activation: str, gate: Tensor, up: Tensor) -> Tensor | None:
        """activation(gate) * up."""
        ...

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
        """x [B, T, H, hd] turned by cos and sin [B, T, hd]."""
        ...


lent: Kernels | None = None


@contextmanager
def lend(kernels: Kernels | None) -> Iterator[None]:
    """Inside, models use these; afterwards what they used before."""
    global lent
    before, lent = lent, kernels
    try:
        yield
    finally:
        lent = before
