"""Matrix products in float32 on this processor, and what stands between them, as fast as can be had without rounding more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..model import lending
from .fused import kernels

# torch multiplies float32 matrices on a CPU by MKL, which on other makers' processors leaves half of their width unused, unless bf16
# products are allowed: then by oneDNN, which rounds to bf16 only where the processor gains by it (AMX) and is exact, and on some
# processors more than twice as fast, everywhere else.


_PRODUCTS: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


@contextmanager
def _allowed(precision: str) -> Iterator[None]:
    before = _PRODUCTS.fp32_precision
    _PRODUCTS.fp32_precision = precision
    try:
        yield
    finally:
        _PRODUCTS.fp32_precision = before


@functools.cache
def exact() -> bool:
    """True where products that may be rounded to bf16 are not, measured over the shapes of a forward and a backward."""
    if not torch.backends.mkldnn.is_available():
        return False
    for n, k, m in ((8, 64, 64), (100, 192, 96), (512, 192, 512), (512, 512, 2048)):
        # Fixed scattered numbers in [-1, 1], as no draw may be spent here. Rounded to bf16 their products are off by some 1e-2, else by 1e-5.
        a = torch.arange(n * k).mul(0.7391).sin_().view(n, k)
        b = torch.arange(m * k).mul(1.1357).cos_().view(m, k)
        want = a.double() @ b.double().T
        with _allowed("bf16"):
            got = a @ b.T, torch.nn.functional.linear(a, b), (b @ a.T).T
        if any((g.double() - want).abs().max() > 3e-4 for g in got):
            return False
    return True


@contextmanager
def fast() -> Iterator[None]:
    """Inside, float32 products take the faster way where it is exact, and what stands between them goes by kernels of our own."""
    found = kernels()
    try:
        with lending.lend(found), _allowed("bf16") if exact() else nullcontext():
            yield
    finally:
        if found:
            found.clear()  # weights may move now


class _Switch(torch.autograd.Function):
    """Tensors as they are; on the way back, products change to `precision` here."""

    @staticmethod
    def forward(ctx, precision: str, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        ctx.precision = precision
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx, *grads: Tensor):  # type: ignore[override]
        _PRODUCTS.fp32_precision = ctx.precision
        return None, *grads


def apart(fn: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """fn(*tensors), there and back by the usual products: attention multiplies many small matrices, at which oneDNN is slow."""
    before = _PRODUCTS.fp32_precision
    if before != "bf16":
        return fn(*tensors)
    with _allowed("ieee"):
        out = fn(*_Switch.apply(before, *tensors))  # type: ignore[misc]
    return _Switch.apply("ieee", out)[0]  # type: ignore[index]
