"""Kernel overrides: operations of the transformer that kernels may compute, and the active kernels."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from torch import Tensor


class KernelOverrides(Protocol):
    """Kernels for single operations; each returns None for what it cannot compute, which torch then does."""

    def norm(self, x: Tensor, weight: Tensor, eps: float, shift: float, to_bf16: bool) -> tuple[Tensor, Tensor] | None:
        """The norm x / rms(x) * (shift + weight) over the last dimension, in bf16 with `to_bf16`; and x itself."""
        ...

    def linear(
        self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], residual: Tensor | None = None
    ) -> tuple[Tensor, ...] | None:
        """The linear layers x @ weight.T + bias, under autocast; `residual` is added to that of a single weight."""
        ...

    def add(self, x: Tensor, z: Tensor) -> Tensor | None:
        """The sum x + z."""
        ...

    def gated(self, activation: str, gate: Tensor, up: Tensor) -> Tensor | None:
        """The gated unit activation(gate) * up."""
        ...

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
        """Rotary positions: x [B, T, H, hd] rotated by cos and sin [B, T, hd]."""
        ...


class _Active(threading.local):
    kernels: KernelOverrides | None = None


_active = _Active()  # of each thread: a learner's are not those of an engine that samples beside it


def active() -> KernelOverrides | None:
    """The kernels that models call in this thread."""
    return _active.kernels


@contextmanager
def use_kernels(kernels: KernelOverrides | None) -> Iterator[None]:
    """Make models call these kernels inside the `with`, in this thread."""
    before, _active.kernels = _active.kernels, kernels
    try:
        yield
    finally:
        _active.kernels = before
