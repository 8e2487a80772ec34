"""The fast paths of a learner: kernels, and torch's faster float32 matmul where that is exact."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .layer_ops import layer_ops
from .overrides import use_kernels

# torch multiplies float32 matrices on a CPU by MKL, which on CPUs not made by Intel uses half of the vector width,
# unless bf16 matmuls are allowed: then by oneDNN, which rounds to bf16 only where the CPU gains by it (AMX), and
# elsewhere is exact and on some CPUs more than twice as fast.
_MATMUL: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


@contextmanager
def _precision(precision: str) -> Iterator[None]:
    before = _MATMUL.fp32_precision
    _MATMUL.fp32_precision = precision
    try:
        yield
    finally:
        _MATMUL.fp32_precision = before


@functools.cache
def onednn_is_exact() -> bool:
    """Whether matmuls that may round to bf16 do not, measured on the shapes of a forward and a backward."""
    if not torch.backends.mkldnn.is_available():
        return False
    for n, k, m in ((8, 64, 64), (100, 192, 96), (512, 192, 512), (512, 512, 2048)):
        # Fixed scattered numbers in [-1, 1], not random ones: no global generator is used. With bf16 rounding the error
        # is about 1e-2, else 1e-5.
        a = torch.arange(n * k).mul(0.7391).sin_().view(n, k)
        b = torch.arange(m * k).mul(1.1357).cos_().view(m, k)
        want = a.double() @ b.double().T
        with _precision("bf16"):
            got = a @ b.T, torch.nn.functional.linear(a, b), (b @ a.T).T
        if any((g.double() - want).abs().max() > 3e-4 for g in got):
            return False
    return True


@contextmanager
def fast_paths() -> Iterator[None]:
    """Make models call the kernels, and float32 matmuls use oneDNN where it is exact, inside the `with`."""
    kernels = layer_ops()
    try:
        with use_kernels(kernels), _precision("bf16") if onednn_is_exact() else nullcontext():
            yield
    finally:
        if kernels:
            kernels.clear()  # weights may change after this


class _SwitchPrecision(torch.autograd.Function):
    """The identity, whose backward sets the precision of matmuls."""

    @staticmethod
    def forward(ctx: Any, precision: str, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        ctx.precision = precision
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        _MATMUL.fp32_precision = ctx.precision
        return None, *grads


def default_matmul(fn: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """The result of fn(*tensors), forward and backward by torch's default matmul.

    oneDNN is slow at the many small matmuls of attention.
    """
    before = _MATMUL.fp32_precision
    if before != "bf16":
        return fn(*tensors)
    with _precision("ieee"):
        out = fn(*_SwitchPrecision.apply(before, *tensors))  # type: ignore[misc]
    return _SwitchPrecision.apply("ieee", out)[0]  # type: ignore[index]
