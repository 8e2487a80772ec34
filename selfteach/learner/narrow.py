"""Products of a learner in bf16 with float32 sums, by a kernel of our own (narrow.cpp), where a processor gains by it.

Weights are packed once per gradient, as products want them; several weights that meet the same input share its packing and the sum on the
way back; a weight's gradient is summed in float32 where it stands. The head's log-probabilities are made without logits in memory.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..model.native import library

SOURCE = Path(__file__).with_name("narrow.cpp")
CHUNK = 1 << 25  # numbers of a head's chunk: a multiple of ROWS rows, of which there are LEAST at least
ROWS, LEAST = 64, 256
HELD = 1 << 28  # and of those kept for the way back; what is above it is made anew there
FAR = 60.0  # how far a row's greatest score may stand above its own id's: e^FAR and sums of it are numbers of float32


@functools.cache
def packed() -> Products | None:
    """The products, where they can be built and are faster than torch's."""
    lib = library(SOURCE)
    return None if isinstance(lib, str) or not lib.pays() else Products(lib)


class Products:
    """Packed weights, kept until `clear`, and what is done with them."""

    def __init__(self, lib: ctypes.CDLL):
        self.lib = lib
        self.kept: dict[tuple[Tensor, bool], Tensor] = {}
        p, i = ctypes.c_void_p, ctypes.c_int64
        for name, given, back in [
            ("panel", [], i),
            ("pack_weights", [p, i, i, i, p, i], None),
            ("pack_tokens", [p, i, i, p, i], None),
            ("product", [p, p, p, i, i, i, p, p, p, i, i], None),
            ("weight_gradient", [p, i, i, i, p, i, p, i, i], None),
            ("head_scores", [p, i, i, p, i, p, p, p, p, p, p, p, p, i], None),
        ]:
            call = getattr(lib, name)
            call.argtypes, call.restype = given, back
        self.panel = int(lib.panel())

    def clear(self) -> None:
        """Forget the packed weights: they may move now."""
        self.kept.clear()

    def linear(self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], plus: Tensor | None = None) -> tuple[Tensor, ...] | None:
        """x @ w.T + b for each weight, bf16; with `plus` (float32, one weight) plus + that, float32. None for shapes that are not even."""
        if any(w.dtype != torch.float32 or w.shape[0] % 2 or w.shape[1] % 2 for w in weights) or not x.numel():
            return None
        if plus is not None and (plus.dtype != torch.float32 or plus.numel() != x.numel() // x.shape[-1] * weights[0].shape[0]):
            return None
        return _Linear.apply(self, x.bfloat16(), plus, len(weights), *weights, *biases)  # type: ignore[return-value]

    def logp(self, hidden: Tensor, weight: Tensor, ids: Tensor, heat: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Log-probabilities of ids under softmax(hidden @ weight.T / heat), and entropies, [n] each. None for shapes that are not even."""
        if hidden.dtype != torch.float32 or weight.dtype != torch.float32 or weight.shape[0] % 2 or weight.shape[1] % 2:
            return None
        return _Chosen.apply(self, hidden, weight, ids, heat)  # type: ignore[return-value]

    def panels(self, weight: Tensor, forward: bool) -> Tensor:
        """A weight as the right side of x @ w.T (forward), or of g @ w."""
        if (weight, forward) not in self.kept:
            w = weight.detach().contiguous()
            out, k = w.shape
            columns, deep = (out, k) if forward else (k, out)
            room = torch.empty(-(-columns // self.panel) * self.panel * deep, dtype=torch.bfloat16)
            self.lib.pack_weights(w.data_ptr(), out, k, forward, room.data_ptr(), torch.get_num_threads())
            self.kept[weight, forward] = room
        return self.kept[weight, forward]

    def product(
        self, sides: Sequence[tuple[Tensor, Tensor]], columns: int, kind: torch.dtype, bias: Tensor | None = None, plus: Tensor | None = None
    ) -> Tensor:
        """Sum over (a bf16[n, depth], panels) of their products: [n, columns]."""
        n = sides[0][0].shape[0]
        y = torch.empty(n, columns, dtype=kind)
        at = ctypes.c_int64 * len(sides)
        a, panels = (at(*(s[i].data_ptr() for s in sides)) for i in (0, 1))
        added = [None if t is None else t.data_ptr() for t in (bias, plus)]
        depth = at(*(s[0].shape[1] for s in sides))
        self.lib.product(a, depth, panels, len(sides), n, columns, *added, y.data_ptr(), kind == torch.bfloat16, torch.get_num_threads())
        return y

    def across(self, x: Tensor) -> Tensor:
        """bf16[n, columns] as the right side of g.T @ x."""
        n, columns = x.shape
        room = torch.empty(-(-columns // self.panel) * self.panel * (n + n % 2), dtype=torch.bfloat16)
        self.lib.pack_tokens(x.data_ptr(), n, columns, room.data_ptr(), torch.get_num_threads())
        return room

    def gradient(self, g: Tensor, panels: Tensor, to: Tensor, more: bool) -> None:
        """to (+)= g.T @ x, from bf16[n, out] and x as `across` gives it."""
        n, out = g.shape
        self.lib.weight_gradient(g.data_ptr(), out, n, out, panels.data_ptr(), to.shape[1], to.data_ptr(), more, torch.get_num_threads())


class _Linear(torch.autograd.Function):
    """The gradient of a weight goes to its .grad in the product itself; autograd would make a copy first, and add that."""

    @staticmethod
    def forward(ctx: Any, own: Products, x: Tensor, plus: Tensor | None, count: int, *given: Tensor | None):  # type: ignore[override]
        weights: Sequence[Tensor] = given[:count]  # type: ignore[assignment]
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        kind = torch.bfloat16 if plus is None else torch.float32
        plus = None if plus is None else plus.contiguous()
        ctx.own, ctx.weights, ctx.shape = own, weights, x.shape
        ctx.save_for_backward(flat)
        out = [own.product([(flat, own.panels(w, True))], w.shape[0], kind, b, plus) for w, b in zip(weights, given[count:], strict=True)]
        return tuple(y.view(*x.shape[:-1], y.shape[-1]) for y in out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # type: ignore[override]
        own: Products = ctx.own
        (x,), count = ctx.saved_tensors, len(ctx.weights)
        narrow = [g.reshape(-1, g.shape[-1]).bfloat16().contiguous() for g in grads]
        dx = None
        if ctx.needs_input_grad[1]:
            sides = [(g, own.panels(w, False)) for g, w in zip(narrow, ctx.weights, strict=True)]
            dx = own.product(sides, x.shape[1], torch.bfloat16).view(ctx.shape)
        panels = own.across(x) if any(ctx.needs_input_grad[4 : 4 + count]) else None
        for w, g, moves in zip(ctx.weights, narrow, ctx.needs_input_grad[4:], strict=False):
            if moves and panels is not None:
                more = w.grad is not None
                if not more:
                    w.grad = torch.empty_like(w)
                own.gradient(g, panels, w.grad, more)
        biases = [g.sum(0, dtype=torch.float32) if needed else None for g, needed in zip(narrow, ctx.needs_input_grad[4 + count :], strict=True)]
        return None, dx, grads[0] if ctx.needs_input_grad[2] else None, None, *[None] * count, *biases


class _Chosen(torch.autograd.Function):
    """`logp` and `entropy` as learner.columns.Chosen has them, with hidden states, weights and what goes back through them in bf16.

    With s = sum e of a row (narrow.cpp), t its temperature, and cotangents g of l = log p and h of the entropy H:
        d / d logit_j = -(g + h (l_j + H)) p_j / t for all ids but the row's own, which is (g (1 - p) - h (l + H) p) / t, in float32.
    """

    @staticmethod
    def forward(ctx: Any, own: Products, hidden: Tensor, weight: Tensor, ids: Tensor, heat: Tensor | None):  # type: ignore[override]
        by = torch.ones(len(ids)) if heat is None else 1 / heat
        ctx.own, ctx.kept = own, []
        x = hidden.bfloat16()
        off = (hidden * weight[ids]).sum(-1).mul_(by)
        found = torch.empty(3, len(ids))  # the chosen one's score, the sum and the spread of e
        for a in range(0, len(ids), _rows(weight)):
            rows = slice(a, a + _rows(weight))
            e, top = _scores(own, x[rows], weight, ids[rows], by[rows], off[rows], found[:, rows])
            if ((top - off[rows]) > FAR).any():
                off[rows] = torch.maximum(off[rows], top)
                e, _ = _scores(own, x[rows], weight, ids[rows], by[rows], off[rows], found[:, rows])
            ctx.kept.append(e if any(ctx.needs_input_grad[1:3]) and rows.stop * weight.shape[0] <= HELD else None)
        chosen, total, spread = found
        logp, entropy = chosen - off - total.log(), total.log() - spread / total
        ctx.save_for_backward(hidden, x, weight, ids, by, off, total, logp, entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, to_logp: Tensor, to_entropy: Tensor):  # type: ignore[override]
        hidden, x, weight, ids, by, off, total, logp, entropy = ctx.saved_tensors
        own: Products = ctx.own
        p, mixed = logp.exp(), bool(to_entropy.any())
        share = -to_logp * by / total
        alone = (to_logp * -torch.expm1(logp) - to_entropy * (logp + entropy) * p) * by  # the own id's part, a row of the head for each
        down = torch.empty_like(hidden) if ctx.needs_input_grad[1] else None
        across = torch.empty_like(weight) if ctx.needs_input_grad[2] else None
        for n, a in enumerate(range(0, len(ids), _rows(weight))):
            rows = slice(a, a + _rows(weight))
            e = ctx.kept[n]
            ctx.kept[n] = None
            if e is None:
                e, _ = _scores(own, x[rows], weight, ids[rows], by[rows], off[rows], torch.empty(3, len(x[rows])))
            if mixed:
                e, scale = _mixed(e, to_logp[rows] * by[rows], to_entropy[rows] * by[rows], total[rows], entropy[rows]), torch.ones(len(x[rows]))
            else:
                scale = share[rows]
            if down is not None:
                down[rows] = own.product([(e, own.panels(weight, False))], weight.shape[1], torch.float32).mul_(scale[:, None])
            if across is not None:
                own.gradient(e, own.across((hidden[rows] * scale[:, None]).bfloat16()), across, n > 0)
        if down is not None:
            down.addcmul_(alone[:, None], weight[ids])
        if across is not None:
            across.index_add_(0, ids, hidden * alone[:, None])
        return None, down, across, None, None


def _rows(weight: Tensor) -> int:
    """Rows of a head's chunk."""
    return max(LEAST, CHUNK // weight.shape[0] // ROWS * ROWS)


def _scores(own: Products, x: Tensor, weight: Tensor, ids: Tensor, by: Tensor, off: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """(e bf16[n, V], the greatest score of each row); the rest goes into `found`."""
    n, vocab = len(x), weight.shape[0]
    e, top, out = torch.empty(n, vocab, dtype=torch.bfloat16), torch.empty(n), torch.empty(3, n)
    at = [t.data_ptr() for t in (ids, by, off, e, out[0], out[1], out[2], top)]
    own.lib.head_scores(x.data_ptr(), n, x.shape[1], own.panels(weight, True).data_ptr(), vocab, *at, torch.get_num_threads())
    found.copy_(out)
    return e, top


def _mixed(e: Tensor, to_logp: Tensor, to_entropy: Tensor, total: Tensor, entropy: Tensor) -> Tensor:
    """-(g + h (l + H)) p for all ids of some rows, in bf16."""
    p = e.float().div_(total[:, None])
    by = p.log().clamp_(min=-1e4).add_(entropy[:, None]).mul_(to_entropy[:, None]).add_(to_logp[:, None])
    return p.mul_(by).neg_().bfloat16()
