"""The binding of matmul_bf16.cpp: bf16 matmuls with float32 sums, forward and backward, where they are faster.

Weights are packed once per gradient step; several weights that multiply one input share its packing and the sum of its
gradients; a weight's gradient is summed in float32 in place. The output head's log-probabilities are computed without
logits in memory.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .build import load_library

SOURCE = Path(__file__).with_name("matmul_bf16.cpp")
CHUNK_ELEMENTS = 1 << 25  # elements of a chunk of logits: a multiple of ROWS rows, at least MIN_ROWS of them
ROWS, MIN_ROWS = 64, 256
MAX_KEPT = 1 << 28  # elements kept for the backward; more are computed again there
# Largest difference of a row's greatest logit and that of its own id: e^MAX_OFFSET, and sums of it, fit float32.
MAX_OFFSET = 60.0


@functools.cache
def bf16_matmul() -> Bf16Matmul | None:
    """The kernels; None where they cannot be built or are not faster than torch's."""
    lib = load_library(SOURCE)
    return None if isinstance(lib, str) or not lib.is_faster() else Bf16Matmul(lib)


class Bf16Matmul:
    """The operations of the kernels, and packed weights, cached until `clear`."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib = lib
        self.packed_weights: dict[tuple[Tensor, bool], Tensor] = {}
        p, i = ctypes.c_void_p, ctypes.c_int64
        for name, given, back in [
            ("panel", [], i),
            ("pack_weights", [p, i, i, i, p, i], None),
            ("pack_tokens", [p, i, i, p, i], None),
            ("matmul", [p, p, p, i, i, i, p, p, p, i, i], None),
            ("weight_gradient", [p, i, i, i, p, i, p, i, i], None),
            ("head_scores", [p, i, i, p, i, p, p, p, p, p, p, p, p, i], None),
        ]:
            call = getattr(lib, name)
            call.argtypes, call.restype = given, back
        self.panel = int(lib.panel())

    def clear(self) -> None:
        """Drop the packed weights, which may change after this."""
        self.packed_weights.clear()

    def linear(
        self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], residual: Tensor | None = None
    ) -> tuple[Tensor, ...] | None:
        """The linear layers x @ w.T + b, bf16; with `residual` (float32, one weight) residual + that, float32.

        None for odd shapes.
        """
        if any(w.dtype != torch.float32 or w.shape[0] % 2 or w.shape[1] % 2 for w in weights) or not x.numel():
            return None
        if residual is not None and (
            residual.dtype != torch.float32 or residual.numel() != x.numel() // x.shape[-1] * weights[0].shape[0]
        ):
            return None
        return _Linear.apply(self, x.bfloat16(), residual, len(weights), *weights, *biases)  # type: ignore[return-value]

    def logp(
        self, hidden: Tensor, weight: Tensor, ids: Tensor, temperature: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """Log-probabilities of ids under softmax(hidden @ weight.T / temperature), and entropies, [n] each.

        None for odd shapes.
        """
        if hidden.dtype != torch.float32 or weight.dtype != torch.float32 or weight.shape[0] % 2 or weight.shape[1] % 2:
            return None
        return _LogProb.apply(self, hidden, weight, ids, temperature)  # type: ignore[return-value]

    def packed_weight(self, weight: Tensor, forward: bool) -> Tensor:
        """A packed weight, as the right side of x @ w.T (forward) or of g @ w."""
        if (weight, forward) not in self.packed_weights:
            w = weight.detach().contiguous()
            out, k = w.shape
            columns, deep = (out, k) if forward else (k, out)
            packed = torch.empty(-(-columns // self.panel) * self.panel * deep, dtype=torch.bfloat16)
            self.lib.pack_weights(w.data_ptr(), out, k, forward, packed.data_ptr(), torch.get_num_threads())
            self.packed_weights[weight, forward] = packed
        return self.packed_weights[weight, forward]

    def matmul(
        self,
        sides: Sequence[tuple[Tensor, Tensor]],
        columns: int,
        dtype: torch.dtype,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """The sum of a @ packed over pairs (a bf16[n, depth], packed weight): [n, columns]."""
        n = sides[0][0].shape[0]
        y = torch.empty(n, columns, dtype=dtype)
        at = ctypes.c_int64 * len(sides)
        a, panels = (at(*(s[i].data_ptr() for s in sides)) for i in (0, 1))
        added = [None if t is None else t.data_ptr() for t in (bias, residual)]
        depth = at(*(s[0].shape[1] for s in sides))
        self.lib.matmul(
            a,
            depth,
            panels,
            len(sides),
            n,
            columns,
            *added,
            y.data_ptr(),
            dtype == torch.bfloat16,
            torch.get_num_threads(),
        )
        return y

    def packed_tokens(self, x: Tensor) -> Tensor:
        """Tokens x bf16[n, columns], packed as the right side of g.T @ x."""
        n, columns = x.shape
        packed = torch.empty(-(-columns // self.panel) * self.panel * (n + n % 2), dtype=torch.bfloat16)
        self.lib.pack_tokens(x.data_ptr(), n, columns, packed.data_ptr(), torch.get_num_threads())
        return packed

    def add_weight_gradient(self, g: Tensor, panels: Tensor, to: Tensor, more: bool) -> None:
        """Set `to` to g.T @ x, or add that with `more`; g bf16[n, out], panels: x as `packed_tokens` gives it."""
        n, out = g.shape
        self.lib.weight_gradient(
            g.data_ptr(), out, n, out, panels.data_ptr(), to.shape[1], to.data_ptr(), more, torch.get_num_threads()
        )


class _Linear(torch.autograd.Function):
    """Linear layers whose backward adds to a weight's .grad in place; autograd would add a copy."""

    @staticmethod
    def forward(
        ctx: Any, kernels: Bf16Matmul, x: Tensor, residual: Tensor | None, count: int, *given: Tensor | None
    ) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        weights: Sequence[Tensor] = given[:count]  # type: ignore[assignment]
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        dtype = torch.bfloat16 if residual is None else torch.float32
        residual = None if residual is None else residual.contiguous()
        ctx.kernels, ctx.weights, ctx.shape = kernels, weights, x.shape
        ctx.save_for_backward(flat)
        out = [
            kernels.matmul([(flat, kernels.packed_weight(w, True))], w.shape[0], dtype, b, residual)
            for w, b in zip(weights, given[count:], strict=True)
        ]
        return tuple(y.view(*x.shape[:-1], y.shape[-1]) for y in out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        kernels: Bf16Matmul = ctx.kernels
        (x,), count = ctx.saved_tensors, len(ctx.weights)
        grads16 = [g.reshape(-1, g.shape[-1]).bfloat16().contiguous() for g in grads]
        dx = None
        if ctx.needs_input_grad[1]:
            sides = [(g, kernels.packed_weight(w, False)) for g, w in zip(grads16, ctx.weights, strict=True)]
            dx = kernels.matmul(sides, x.shape[1], torch.bfloat16).view(ctx.shape)
        panels = kernels.packed_tokens(x) if any(ctx.needs_input_grad[4 : 4 + count]) else None
        for w, g, needed in zip(ctx.weights, grads16, ctx.needs_input_grad[4:], strict=False):
            if needed and panels is not None:
                more = w.grad is not None
                if not more:
                    w.grad = torch.empty_like(w)
                kernels.add_weight_gradient(g, panels, w.grad, more)
        biases = [
            g.sum(0, dtype=torch.float32) if needed else None
            for g, needed in zip(grads16, ctx.needs_input_grad[4 + count :], strict=True)
        ]
        return None, dx, grads[0] if ctx.needs_input_grad[2] else None, None, *[None] * count, *biases


class _LogProb(torch.autograd.Function):
    """`logp` and `entropy` from hidden states and weights in bf16, and gradients through them in bf16.

    With s = sum e of a row (matmul_bf16.cpp), t its temperature, and cotangents g of l = log p and h of the entropy H:
        d / d logit_j  = -(g + h (l_j + H)) p_j / t            for all ids but the row's own, i
        d / d logit_i  = (g (1 - p_i) - h (l_i + H) p_i) / t   in float32
    """

    @staticmethod
    def forward(
        ctx: Any, kernels: Bf16Matmul, hidden: Tensor, weight: Tensor, ids: Tensor, temperature: Tensor | None
    ) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        inverse_temperature = torch.ones(len(ids)) if temperature is None else 1 / temperature
        ctx.kernels, ctx.kept = kernels, []
        x = hidden.bfloat16()
        offset = (hidden * weight[ids]).sum(-1).mul_(inverse_temperature)
        sums = torch.empty(3, len(ids))  # by row: score of its id, sum of e, sum of e (z - c)
        for a in range(0, len(ids), _rows(weight)):
            rows = slice(a, a + _rows(weight))
            e, top = _scores(
                kernels, x[rows], weight, ids[rows], inverse_temperature[rows], offset[rows], sums[:, rows]
            )
            if ((top - offset[rows]) > MAX_OFFSET).any():
                offset[rows] = torch.maximum(offset[rows], top)
                e, _ = _scores(
                    kernels, x[rows], weight, ids[rows], inverse_temperature[rows], offset[rows], sums[:, rows]
                )
            ctx.kept.append(e if any(ctx.needs_input_grad[1:3]) and rows.stop * weight.shape[0] <= MAX_KEPT else None)
        token_score, total, weighted_sum = sums
        logp, entropy = token_score - offset - total.log(), total.log() - weighted_sum / total
        ctx.save_for_backward(hidden, x, weight, ids, inverse_temperature, offset, total, logp, entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, grad_logp: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, x, weight, ids, inverse_temperature, offset, total, logp, entropy = ctx.saved_tensors
        kernels: Bf16Matmul = ctx.kernels
        p, has_entropy_grad = logp.exp(), bool(grad_entropy.any())
        share = -grad_logp * inverse_temperature / total
        # The derivative by the own id's logit, of each row.
        grad_own = (grad_logp * -torch.expm1(logp) - grad_entropy * (logp + entropy) * p) * inverse_temperature
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[1] else None
        grad_weight = torch.empty_like(weight) if ctx.needs_input_grad[2] else None
        for n, a in enumerate(range(0, len(ids), _rows(weight))):
            rows = slice(a, a + _rows(weight))
            e = ctx.kept[n]
            ctx.kept[n] = None
            if e is None:
                e, _ = _scores(
                    kernels,
                    x[rows],
                    weight,
                    ids[rows],
                    inverse_temperature[rows],
                    offset[rows],
                    torch.empty(3, len(x[rows])),
                )
            if has_entropy_grad:
                e, scale = (
                    _grad_logits(
                        e,
                        grad_logp[rows] * inverse_temperature[rows],
                        grad_entropy[rows] * inverse_temperature[rows],
                        total[rows],
                        entropy[rows],
                    ),
                    torch.ones(len(x[rows])),
                )
            else:
                scale = share[rows]
            if grad_hidden is not None:
                grad_hidden[rows] = kernels.matmul(
                    [(e, kernels.packed_weight(weight, False))], weight.shape[1], torch.float32
                ).mul_(scale[:, None])
            if grad_weight is not None:
                kernels.add_weight_gradient(
                    e, kernels.packed_tokens((hidden[rows] * scale[:, None]).bfloat16()), grad_weight, n > 0
                )
        if grad_hidden is not None:
            grad_hidden.addcmul_(grad_own[:, None], weight[ids])
        if grad_weight is not None:
            grad_weight.index_add_(0, ids, hidden * grad_own[:, None])
        return None, grad_hidden, grad_weight, None, None


def _rows(weight: Tensor) -> int:
    """The number of rows of a chunk of logits."""
    return max(MIN_ROWS, CHUNK_ELEMENTS // weight.shape[0] // ROWS * ROWS)


def _scores(
    kernels: Bf16Matmul,
    x: Tensor,
    weight: Tensor,
    ids: Tensor,
    inverse_temperature: Tensor,
    offset: Tensor,
    sums: Tensor,
) -> tuple[Tensor, Tensor]:
    """The pair (e bf16[n, V], the greatest score of each row); the sums of rows are written to `sums` [3, n]."""
    n, vocab = len(x), weight.shape[0]
    e, top, out = torch.empty(n, vocab, dtype=torch.bfloat16), torch.empty(n), torch.empty(3, n)
    at = [t.data_ptr() for t in (ids, inverse_temperature, offset, e, out[0], out[1], out[2], top)]
    kernels.lib.head_scores(
        x.data_ptr(), n, x.shape[1], kernels.packed_weight(weight, True).data_ptr(), vocab, *at, torch.get_num_threads()
    )
    sums.copy_(out)
    return e, top


def _grad_logits(e: Tensor, grad_logp: Tensor, grad_entropy: Tensor, total: Tensor, entropy: Tensor) -> Tensor:
    """The derivatives -(g + h (l + H)) p by all logits of some rows, in bf16."""
    p = e.float().div_(total[:, None])
    factor = p.log().clamp_(min=-1e4).add_(entropy[:, None]).mul_(grad_entropy[:, None]).add_(grad_logp[:, None])
    return p.mul_(factor).neg_().bfloat16()
