"""Norms, rotary positions, the gated unit and attention as one kernel each way (kernels.cpp), for processors.

Each is an autograd function with its way back by hand: autograd over torch's own kernels reads and writes everything several times, which
on a processor costs as much as the matrix products. Nothing here changes what is computed; where the file cannot be built, torch does it.
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

from ..model.native import library
from ..model.transformer import Look
from .narrow import packed

SOURCE = Path(__file__).with_name("kernels.cpp")
KINDS = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Pieces:
    """Flat tokens as texts and their branches. i64[P, 3]: where a piece begins, its tokens, how many of its family's base stand before it;
    the first piece of a family is its base. i64[families + 1]: where each family's pieces begin."""

    table: np.ndarray
    family: np.ndarray


def pieces_of(bases: np.ndarray, branches: np.ndarray, first: np.ndarray, context: np.ndarray) -> Pieces:
    """Texts of lengths `bases` laid end to end, then branches that begin at position `first` of the base that stands at `context`."""
    size = np.concatenate([bases, branches])
    begin = np.cumsum(size) - size
    before = np.concatenate([np.zeros(len(bases), np.int64), first])
    home = np.concatenate([np.arange(len(bases)), np.searchsorted(begin[: len(bases)], context)])
    order = np.argsort(home, kind="stable")
    table = np.ascontiguousarray(np.stack([begin, size, before], 1)[order].astype(np.int64))
    return Pieces(table, np.searchsorted(home[order], np.arange(len(bases) + 1)).astype(np.int64))


@functools.cache
def kernels() -> Fused | None:
    """The kernels, where they can be built."""
    lib = library(SOURCE)
    return None if isinstance(lib, str) else Fused(lib)


class Fused:
    """model.lending.Kernels, and attention."""

    def __init__(self, lib: ctypes.CDLL):
        self.lib = lib
        self.narrow: dict[Tensor, Tensor] = {}  # weights -> the same in bf16, as long as they stay as they are
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

    def norm(self, x: Tensor, weight: Tensor, eps: float, shift: float, narrow: bool) -> tuple[Tensor, Tensor] | None:
        if not _fits(x) or weight.dtype != torch.float32:
            return None
        return _Norm.apply(self.lib, x, weight, eps, shift, torch.bfloat16 if narrow else x.dtype)  # type: ignore[return-value]

    def gated(self, activation: str, gate: Tensor, up: Tensor) -> Tensor | None:
        if activation != "silu" or not _fits(gate, up):
            return None
        return _Gated.apply(self.lib, gate, up)  # type: ignore[return-value]

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
        if not _fits(x) or cos.dtype != torch.float32 or cos.shape[:2] != x.shape[:2]:
            return None
        return _Turn.apply(self.lib, x, cos, sin)  # type: ignore[return-value]

    def linear(self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], plus: Tensor | None = None) -> tuple[Tensor, ...] | None:
        if not torch.is_autocast_enabled("cpu") or not _fits(x):
            return None
        if (own := packed()) is not None and (out := own.linear(x, weights, biases, plus)) is not None:
            return out
        if plus is not None or any(b is not None for b in biases) or any(w.dtype != torch.float32 for w in weights):
            return None
        for w in weights:
            if w not in self.narrow:
                self.narrow[w] = w.detach().bfloat16()
        return tuple(_Linear.apply(self.lib, x.bfloat16(), w, self.narrow[w]) for w in weights)  # type: ignore[return-value]

    def clear(self) -> None:
        """Forget what was made of weights, which may move now."""
        self.narrow.clear()
        if (own := packed()) is not None:
            own.clear()

    def add(self, x: Tensor, z: Tensor) -> Tensor | None:
        if not (_fits(x) and _fits(z) and x.dtype == torch.float32 and z.dtype == torch.bfloat16 and x.shape == z.shape):
            return None
        return _Add.apply(self.lib, x, z)  # type: ignore[return-value]

    def attend(self, look: Look, pieces: Pieces, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        """q [N, H, hd] over k, v [N, KV, hd] -> [N, H, hd]; rows behind the last piece are 0."""
        if look.cap is not None or not _fits(q, k, v):
            return None
        return _Attend.apply(self.lib, look, pieces, q, k, v)  # type: ignore[return-value]


def _fits(*tensors: Tensor) -> bool:
    return all(t.device.type == "cpu" and t.dtype in KINDS and t.dtype == tensors[0].dtype for t in tensors) and tensors[0].numel() > 0


def _at(*tensors: Tensor) -> list[int]:
    return [t.data_ptr() for t in tensors]


def _short(t: Tensor | torch.dtype) -> bool:
    return (t if isinstance(t, torch.dtype) else t.dtype) == torch.bfloat16


class _Norm(torch.autograd.Function):
    """The norm, and x itself: what comes back to it by other ways is added in the same pass."""

    @staticmethod
    def forward(ctx: Any, lib: ctypes.CDLL, x: Tensor, weight: Tensor, eps: float, shift: float, kind: torch.dtype):  # type: ignore[override]
        through = x.view_as(x)
        x, weight = x.contiguous(), weight.contiguous()
        n, d = x.numel() // x.shape[-1], x.shape[-1]
        y, scale = torch.empty_like(x, dtype=kind), torch.empty(n)
        lib.norm_forward(*_at(x, weight, y, scale), n, d, eps, shift, _short(x), _short(kind), torch.get_num_threads())
        ctx.save_for_backward(x, weight, scale)
        ctx.lib, ctx.shift = lib, shift
        ctx.set_materialize_grads(False)
        return y, through

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, more: Tensor | None):  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        if grad is None:
            return None, more, None, None, None, None
        more = None if more is None else more.contiguous()
        grad, dx, n = grad.contiguous(), torch.empty_like(x), len(scale)
        dw = torch.empty_like(weight) if ctx.needs_input_grad[2] else None
        where = None if dw is None else dw.data_ptr()
        threads = torch.get_num_threads()
        by_others = None if more is None else more.data_ptr()
        ctx.lib.norm_backward(
            *_at(x, weight, scale, grad), by_others, dx.data_ptr(), where, n, x.shape[-1], ctx.shift, _short(x), _short(grad), threads
        )
        return None, dx, dw, None, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lib: ctypes.CDLL, gate: Tensor, up: Tensor) -> Tensor:  # type: ignore[override]
        gate, up = gate.contiguous(), up.contiguous()
        y = torch.empty_like(gate)
        lib.gate_forward(*_at(gate, up, y), y.numel(), _short(y), torch.get_num_threads())
        ctx.save_for_backward(gate, up)
        ctx.lib = lib
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor):  # type: ignore[override]
        gate, up = ctx.saved_tensors
        grad, dg, du = grad.contiguous(), torch.empty_like(gate), torch.empty_like(up)
        ctx.lib.gate_backward(*_at(gate, up, grad, dg, du), gate.numel(), _short(gate), torch.get_num_threads())
        return None, dg, du


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lib: ctypes.CDLL, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # type: ignore[override]
        ctx.lib, ctx.cos, ctx.sin = lib, cos.contiguous(), sin.contiguous()
        return _turned(ctx, x, back=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):  # type: ignore[override]
        return None, _turned(ctx, grad, back=True), None, None


def _turned(ctx: Any, x: Tensor, back: bool) -> Tensor:
    x = x.contiguous()
    y = torch.empty_like(x)
    b, t, heads, hd = x.shape
    ctx.lib.rotate(*_at(x, ctx.cos, ctx.sin, y), b * t, heads, hd, back, _short(x), torch.get_num_threads())
    return y


class _Linear(torch.autograd.Function):
    """x @ narrow.T in bf16. The gradient goes to the float32 weight in one pass, where autograd would make a float32 copy of it first."""

    @staticmethod
    def forward(ctx: Any, lib: ctypes.CDLL, x: Tensor, weight: Tensor, narrow: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, narrow)
        ctx.lib, ctx.weight = lib, weight
        return F.linear(x, narrow)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):  # type: ignore[override]
        x, narrow = ctx.saved_tensors
        dx = grad @ narrow if ctx.needs_input_grad[1] else None
        if ctx.needs_input_grad[2]:
            w = ctx.weight
            dw = grad.reshape(-1, grad.shape[-1]).T @ x.reshape(-1, x.shape[-1])
            if w.grad is None:
                w.grad = dw.float()
            else:
                ctx.lib.add(*_at(w.grad, dw, w.grad), dw.numel(), torch.get_num_threads())
        return None, dx, None, None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lib: ctypes.CDLL, x: Tensor, z: Tensor) -> Tensor:  # type: ignore[override]
        x, z = x.contiguous(), z.contiguous()
        y = torch.empty_like(x)
        lib.add(*_at(x, z, y), y.numel(), torch.get_num_threads())
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor):  # type: ignore[override]
        return None, grad, grad.bfloat16()


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lib: ctypes.CDLL, look: Look, pieces: Pieces, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out, lse = _empty(q, pieces), torch.empty(q.shape[:2])
        lib.attend_forward(*_at(q, k, v, out, lse), *_shape(look, pieces, q, k))
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.lib, ctx.look, ctx.pieces = lib, look, pieces
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor):  # type: ignore[override]
        q, k, v, out, lse = ctx.saved_tensors
        back = [_empty(x, ctx.pieces) for x in (q, k, v)]
        ctx.lib.attend_backward(*_at(q, k, v, out, lse, grad.contiguous(), *back), *_shape(ctx.look, ctx.pieces, q, k))
        return None, None, None, *back


def _empty(x: Tensor, pieces: Pieces) -> Tensor:
    """Like x, the rows that no piece fills 0."""
    out = torch.empty_like(x)
    out[int(pieces.table[:, 1].sum()) :] = 0
    return out


def _shape(look: Look, pieces: Pieces, q: Tensor, k: Tensor) -> list[Any]:
    sizes = [len(pieces.family) - 1, q.shape[1], k.shape[1], q.shape[2], look.window]
    return [pieces.table.ctypes.data, pieces.family.ctypes.data, *sizes, look.scale, _short(q), torch.get_num_threads()]
