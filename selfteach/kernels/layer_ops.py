"""The binding of layer_ops.cpp: norms, rotary positions, gated units and attention, forward and backward.

Each is an autograd function with its own backward: autograd over torch's kernels reads and writes everything several
times, which on a CPU costs as much as the matmuls. Where the source cannot be built, torch computes the same.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .build import load_library
from .matmul_bf16 import bf16_matmul

SOURCE = Path(__file__).with_name("layer_ops.cpp")
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Segments:
    """Flat tokens as bases and the branches that continue them.

    table   i64[P, 3] by segment: its first token, its number of tokens, the tokens of its family's base before it
    family  i64[families + 1]: the begin of each family in the table; its first segment is the base
    """

    table: np.ndarray
    family: np.ndarray


def segments_of(bases: np.ndarray, branches: np.ndarray, first: np.ndarray, context: np.ndarray) -> Segments:
    """Segments of concatenated bases and of the branches after them.

    Lengths `bases` [K] and `branches` [B]; a branch begins at position `first` [B] of the base at token `context` [B].
    """
    size = np.concatenate([bases, branches])
    begin = np.cumsum(size) - size
    before = np.concatenate([np.zeros(len(bases), np.int64), first])
    base_of = np.concatenate([np.arange(len(bases)), np.searchsorted(begin[: len(bases)], context)])
    order = np.argsort(base_of, kind="stable")
    table = np.ascontiguousarray(np.stack([begin, size, before], 1)[order].astype(np.int64))
    return Segments(table, np.searchsorted(base_of[order], np.arange(len(bases) + 1)).astype(np.int64))


@functools.cache
def layer_ops() -> LayerOps | None:
    """The kernels; None where they cannot be built."""
    lib = load_library(SOURCE)
    return None if isinstance(lib, str) else LayerOps(lib)


class LayerOps:
    """The `KernelOverrides` of a learner, and its attention."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib = lib
        self.bf16_weights: dict[Tensor, Tensor] = {}  # cached until `clear`
        p, i, d = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
        for name, given in {
            "norm_forward": [p, p, p, p, i, i, d, d, i, i, i],
            "norm_backward": [p, p, p, p, p, p, p, i, i, d, i, i, i],
            "gate_forward": [p, p, p, i, i, i],
            "gate_backward": [p, p, p, p, p, i, i, i],
            "add": [p, p, p, i, i],
            "rotate": [p, p, p, p, i, i, i, i, i, i],
            "attend_forward": [p, p, p, p, p, p, p, i, i, i, i, i, d, i, i],
            "attend_backward": [p, p, p, p, p, p, p, p, p, p, p, i, i, i, i, i, d, i, i],
        }.items():
            call = getattr(lib, name)
            call.argtypes, call.restype = given, None

    def norm(self, x: Tensor, weight: Tensor, eps: float, shift: float, to_bf16: bool) -> tuple[Tensor, Tensor] | None:
        """As KernelOverrides.norm."""
        if not _fits(x) or weight.dtype != torch.float32:
            return None
        return _Norm.apply(self.lib, x, weight, eps, shift, torch.bfloat16 if to_bf16 else x.dtype)  # type: ignore[return-value]

    def gated(self, activation: str, gate: Tensor, up: Tensor) -> Tensor | None:
        """As KernelOverrides.gated."""
        if activation != "silu" or not _fits(gate, up):
            return None
        return _Gated.apply(self.lib, gate, up)  # type: ignore[return-value]

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
        """As KernelOverrides.rotate."""
        if not _fits(x) or cos.dtype != torch.float32 or cos.shape[:2] != x.shape[:2]:
            return None
        return _Rotate.apply(self.lib, x, cos, sin)  # type: ignore[return-value]

    def linear(
        self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], residual: Tensor | None = None
    ) -> tuple[Tensor, ...] | None:
        """As KernelOverrides.linear."""
        if not torch.is_autocast_enabled("cpu") or not _fits(x):
            return None
        if (matmul := bf16_matmul()) is not None and (out := matmul.linear(x, weights, biases, residual)) is not None:
            return out
        if residual is not None or any(b is not None for b in biases) or any(w.dtype != torch.float32 for w in weights):
            return None
        for w in weights:
            if w not in self.bf16_weights:
                self.bf16_weights[w] = w.detach().bfloat16()
        return tuple(_Linear.apply(self.lib, x.bfloat16(), w, self.bf16_weights[w]) for w in weights)  # type: ignore[return-value]

    def clear(self) -> None:
        """Drop cached copies of weights, which may change after this."""
        self.bf16_weights.clear()
        if (matmul := bf16_matmul()) is not None:
            matmul.clear()

    def add(self, x: Tensor, z: Tensor) -> Tensor | None:
        """As KernelOverrides.add."""
        if not (
            _fits(x) and _fits(z) and x.dtype == torch.float32 and z.dtype == torch.bfloat16 and x.shape == z.shape
        ):
            return None
        return _Add.apply(self.lib, x, z)  # type: ignore[return-value]

    def attend(
        self, segments: Segments, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int = 0
    ) -> Tensor | None:
        """Causal attention of q [N, H, hd] over k, v [N, KV, hd] -> [N, H, hd]; rows after the last segment are 0.

        window  keys that a query sees up to its own (0: all)
        """
        if not _fits(q, k, v):
            return None
        return _Attend.apply(self.lib, segments, scale, window, q, k, v)  # type: ignore[return-value]


def _fits(*tensors: Tensor) -> bool:
    return (
        all(t.device.type == "cpu" and t.dtype in DTYPES and t.dtype == tensors[0].dtype for t in tensors)
        and tensors[0].numel() > 0
    )


def _pointers(*tensors: Tensor) -> list[int]:
    return [t.data_ptr() for t in tensors]


def _is_bf16(t: Tensor | torch.dtype) -> bool:
    return (t if isinstance(t, torch.dtype) else t.dtype) == torch.bfloat16


class _Norm(torch.autograd.Function):
    """The norm, and x itself, so that the residual's gradient is added in the same pass."""

    @staticmethod
    def forward(
        ctx: Any, lib: ctypes.CDLL, x: Tensor, weight: Tensor, eps: float, shift: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        through = x.view_as(x)
        x, weight = x.contiguous(), weight.contiguous()
        n, d = x.numel() // x.shape[-1], x.shape[-1]
        y, scale = torch.empty_like(x, dtype=dtype), torch.empty(n)
        lib.norm_forward(
            *_pointers(x, weight, y, scale), n, d, eps, shift, _is_bf16(x), _is_bf16(dtype), torch.get_num_threads()
        )
        ctx.save_for_backward(x, weight, scale)
        ctx.lib, ctx.shift = lib, shift
        ctx.set_materialize_grads(False)
        return y, through

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, to_x: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        if grad is None:
            return None, to_x, None, None, None, None
        to_x = None if to_x is None else to_x.contiguous()
        grad, dx, n = grad.contiguous(), torch.empty_like(x), len(scale)
        dw = torch.empty_like(weight) if ctx.needs_input_grad[2] else None
        optional = [None if t is None else t.data_ptr() for t in (to_x, dw)]
        ctx.lib.norm_backward(
            *_pointers(x, weight, scale, grad),
            optional[0],
            dx.data_ptr(),
            optional[1],
            n,
            x.shape[-1],
            ctx.shift,
            _is_bf16(x),
            _is_bf16(grad),
            torch.get_num_threads(),
        )
        return None, dx, dw, None, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lib: ctypes.CDLL, gate: Tensor, up: Tensor) -> Tensor:  # type: ignore[override]
        gate, up = gate.contiguous(), up.contiguous()
        y = torch.empty_like(gate)
        lib.gate_forward(*_pointers(gate, up, y), y.numel(), _is_bf16(y), torch.get_num_threads())
        ctx.save_for_backward(gate, up)
        ctx.lib = lib
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gate, up = ctx.saved_tensors
        grad, dg, du = grad.contiguous(), torch.empty_like(gate), torch.empty_like(up)
        ctx.lib.gate_backward(*_pointers(gate, up, grad, dg, du), gate.numel(), _is_bf16(gate), torch.get_num_threads())
        return None, dg, du


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lib: ctypes.CDLL, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # type: ignore[override]
        ctx.lib, ctx.cos, ctx.sin = lib, cos.contiguous(), sin.contiguous()
        return _rotated(ctx, x, inverse=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return None, _rotated(ctx, grad, inverse=True), None, None


def _rotated(ctx: Any, x: Tensor, inverse: bool) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    b, t, heads, hd = x.shape
    ctx.lib.rotate(*_pointers(x, ctx.cos, ctx.sin, y), b * t, heads, hd, inverse, _is_bf16(x), torch.get_num_threads())
    return y


class _Linear(torch.autograd.Function):
    """The linear layer x @ weight.T in bf16.

    Its gradient is added to the float32 weight's in one pass; autograd would make a float32 copy first.
    """

    @staticmethod
    def forward(ctx: Any, lib: ctypes.CDLL, x: Tensor, weight: Tensor, in_bf16: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, in_bf16)
        ctx.lib, ctx.weight = lib, weight
        return F.linear(x, in_bf16)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, in_bf16 = ctx.saved_tensors
        dx = grad @ in_bf16 if ctx.needs_input_grad[1] else None
        if ctx.needs_input_grad[2]:
            w = ctx.weight
            dw = grad.reshape(-1, grad.shape[-1]).T @ x.reshape(-1, x.shape[-1])
            if w.grad is None:
                w.grad = dw.float()
            else:
                ctx.lib.add(*_pointers(w.grad, dw, w.grad), dw.numel(), torch.get_num_threads())
        return None, dx, None, None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lib: ctypes.CDLL, x: Tensor, z: Tensor) -> Tensor:  # type: ignore[override]
        x, z = x.contiguous(), z.contiguous()
        y = torch.empty_like(x)
        lib.add(*_pointers(x, z, y), y.numel(), torch.get_num_threads())
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return None, grad, grad.bfloat16()


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, lib: ctypes.CDLL, segments: Segments, scale: float, window: int, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out, lse = _empty(q, segments), torch.empty(q.shape[:2])
        ctx.lib, ctx.segments, ctx.how = lib, segments, (scale, window)
        lib.attend_forward(*_pointers(q, k, v, out, lse), *_arguments(segments, q, k, *ctx.how))
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, out, lse = ctx.saved_tensors
        grads = [_empty(x, ctx.segments) for x in (q, k, v)]
        pointers = _pointers(q, k, v, out, lse, grad.contiguous(), *grads)
        ctx.lib.attend_backward(*pointers, *_arguments(ctx.segments, q, k, *ctx.how))
        return None, None, None, None, *grads


def _empty(x: Tensor, segments: Segments) -> Tensor:
    """A tensor like x, with zeros in the rows of no segment."""
    out = torch.empty_like(x)
    out[int(segments.table[:, 1].sum()) :] = 0
    return out


def _arguments(segments: Segments, q: Tensor, k: Tensor, scale: float, window: int) -> list[Any]:
    sizes = [len(segments.family) - 1, q.shape[1], k.shape[1], q.shape[2], window]
    pointers = [segments.table.ctypes.data, segments.family.ctypes.data]
    return [*pointers, *sizes, scale, _is_bf16(q), torch.get_num_threads()]
