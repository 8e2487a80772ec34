"""The model's step and the draw in C++ (decode.cpp), built at first use (model/native.py).

The residual, norms, softmax and logits are float32 whatever the weights and the cache are.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..model.native import library
from ..model.transformer import Config, RMSNorm, Transformer
from . import sampler
from .cache import zeros
from .pages import PAGE, Copy, Pages
from .sampler import Draw, padded

SOURCE = Path(__file__).with_name("decode.cpp")
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")  # in the order of decode.cpp
QKV, OUT, GATE_UP, DOWN = range(4)
BEFORE, BETWEEN, BEFORE_MLP, AFTER_MLP, QUERY, KEY = range(6)
DTYPES = (torch.float32, torch.bfloat16)
LARGE = 1 << 28  # bytes of a cache up to which it lies in the system's large pages: faster, but one is memory as soon as any of it is used

WHOLES = ("vocab", "width", "layers", "heads", "kv_heads", "head_dim", "hidden", "activation", "sandwich", "qk_norm")
NUMBERS = ("eps", "scale", "score_cap", "logit_cap", "embedding_scale")


class Shape(ctypes.Structure):
    """As in decode.cpp."""

    _fields_ = [(name, ctypes.c_int64) for name in WHOLES] + [(name, ctypes.c_double) for name in NUMBERS]


@functools.cache
def built() -> ctypes.CDLL | str:
    """decode.cpp as a library whose calls know their types, or why there is none."""
    lib = library(SOURCE)
    return lib if isinstance(lib, str) else _bound(lib)


def _bound(lib: ctypes.CDLL) -> ctypes.CDLL:
    p, i = ctypes.c_void_p, ctypes.c_int64
    for name, given, back in [
        ("lanes", [], i),
        ("page", [], i),
        ("large_pages", [p, i], None),
        ("model_new", [p, i], p),
        ("model_free", [p], None),
        ("model_embedding", [p, p], None),
        ("model_matrix", [p, i, i, p, i, i, p, i], None),
        ("model_norm", [p, i, i, p, i], None),
        ("model_layer", [p, i, i, p, p], None),
        ("model_forward", [p, p, p, i, p, i, p, p, p, i, p, i], None),
        ("model_logits", [p, p, p, i, p, i], None),
        ("draw", [p, i, i, p, p, i, i, p, p, i], None),
    ]:
        call = getattr(lib, name)
        call.argtypes, call.restype = given, back
    assert lib.page() == PAGE
    return lib


def lacking(model: Transformer, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a model cannot go this way; None where it can."""
    if device.type != "cpu":
        return f"weights on {device}"
    if dtype not in DTYPES:
        return f"weights as {dtype}"
    if model.names().keys() != Transformer.bare(model.c).names().keys():
        return "modules besides those of its config"
    return found if isinstance(found := built(), str) else None


class Packed:
    """A model's weights as decode.cpp wants them, in float32 or bfloat16. The model itself stays as it is, in float32."""

    def __init__(self, model: Transformer, dtype: torch.dtype = torch.float32):
        lib = built()
        assert not isinstance(lib, str)
        self.lib, self.model, self.c, self.dtype = lib, model, model.c, dtype
        self.lanes = int(lib.lanes())
        self.handle = lib.model_new(ctypes.byref(_shape(model.c)), dtype == torch.bfloat16)
        self.load()

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.lib.model_free(self.handle)

    def load(self) -> None:
        """Pack the model's weights as they are now."""
        trunk: Any = self.model.model
        bias = lambda module: module.bias  # noqa: E731
        self.kept = [trunk.embed_tokens.weight.detach().contiguous()]  # what the other side reads in place
        self.lib.model_embedding(self.handle, self.kept[0].data_ptr())
        for n, (layer, turn) in enumerate(zip(trunk.layers, self.model.turned, strict=True)):
            attention, mlp = layer.self_attn, layer.mlp
            three = (attention.q_proj, attention.k_proj, attention.v_proj)
            both = (mlp.gate_proj, mlp.up_proj)
            self._matrix(n, QKV, torch.cat([m.weight for m in three]), None if three[0].bias is None else torch.cat([bias(m) for m in three]))
            self._matrix(n, OUT, attention.o_proj.weight, attention.o_proj.bias)
            self._matrix(n, GATE_UP, self._woven(*(m.weight for m in both)), None if both[0].bias is None else self._woven(*map(bias, both)))
            self._matrix(n, DOWN, mlp.down_proj.weight, mlp.down_proj.bias)
            self._norm(n, BEFORE, layer.input_layernorm)
            self._norm(n, BETWEEN, layer.post_attention_layernorm)
            if self.c.sandwich:
                self._norm(n, BEFORE_MLP, layer.pre_feedforward_layernorm)
                self._norm(n, AFTER_MLP, layer.post_feedforward_layernorm)
            if self.c.qk_norm:
                self._norm(n, QUERY, attention.q_norm)
                self._norm(n, KEY, attention.k_norm)
            tables = [] if turn is None else [self.model.get_buffer(f"{turn}{name}").contiguous() for name in ("cos", "sin")]
            self.kept += tables
            self.lib.model_layer(self.handle, n, attention.look.window, *([t.data_ptr() for t in tables] or [None, None]))
        self._norm(-1, 0, trunk.norm)
        self._matrix(-1, 0, self.model.lm_head.weight, None)

    def _matrix(self, layer: int, which: int, weight: Tensor, bias: Tensor | None) -> None:
        weight, bias = weight.detach().contiguous(), None if bias is None else bias.detach().contiguous()
        where = None if bias is None else bias.data_ptr()
        self.lib.model_matrix(self.handle, layer, which, weight.data_ptr(), *weight.shape, where, torch.get_num_threads())

    def _norm(self, layer: int, which: int, norm: RMSNorm) -> None:
        weight = (1 + norm.weight if norm.centred else norm.weight).detach().contiguous()
        self.lib.model_norm(self.handle, layer, which, weight.data_ptr(), len(weight))

    def _woven(self, gate: Tensor, up: Tensor) -> Tensor:
        """Rows of two matrices [n, ...] in turns of a vector's width each, zeros filling the last."""
        fill = [0, 0] * (gate.ndim - 1) + [0, -len(gate) % self.lanes]
        gate, up = (torch.nn.functional.pad(x.detach(), fill).unflatten(0, (-1, self.lanes)) for x in (gate, up))
        return torch.stack([gate, up], 1).flatten(0, 2)


class Native:
    """Packed weights, a cache of `slots` sequences, and steps over both: what `cache.Plain` does in torch.

    A row's bits depend on its own sequence alone, on any number of threads. Sequences that begin alike stand on the same pages of the cache
    (pages.py) and attend them together.
    """

    pads = False

    def __init__(self, packed: Packed, slots: int, length: int):
        self.packed, self.lib, self.model, self.length = packed, packed.lib, packed.model, length
        self.how = f"native, {str(packed.dtype).removeprefix('torch.')}"
        self.resize(slots)

    def resize(self, slots: int) -> None:
        """Another number of slots, all of them empty."""
        c, dtype, lanes = self.model.c, self.packed.dtype, self.packed.lanes
        self.k = self.v = torch.empty(0)  # before the next are had
        self.pages = Pages(slots, -(-self.length // PAGE))
        shape, room = (c.layers, slots, c.kv_heads), PAGE * self.pages.table.shape[1]
        self.k = zeros((*shape, room // lanes, c.head_dim, lanes), "cpu", dtype)
        self.v = zeros((*shape, room, -(-c.head_dim // lanes) * lanes), "cpu", dtype)
        if self.k.nbytes <= LARGE:
            for x in (self.k, self.v):
                self.lib.large_pages(x.data_ptr(), x.nbytes)

    def fresh(self, slots: int, length: int) -> Native:
        """The same weights over another cache."""
        return Native(self.packed, slots, length)

    def load(self) -> None:
        """The model's weights have changed in place: pack them anew."""
        self.packed.load()

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    def share(self, source: int, target: int, count: int) -> int:
        """As Runner.share: a page that is full is stood on by both, and only of the last one something is copied."""
        copies = self.pages.share(source, target, count)
        self._copy(copies)
        return sum(c.stop - c.start for c in copies)

    def _copy(self, copies: list[Copy]) -> None:
        for source, target, start, stop in copies:
            blocks = slice(start // self.packed.lanes, -(-stop // self.packed.lanes))
            self.k[:, target, :, blocks] = self.k[:, source, :, blocks]
            self.v[:, target, :, start:stop] = self.v[:, source, :, start:stop]

    def clear(self, upto: int) -> None:
        """Let go of all pages; a key that a row does not look at is never read."""
        self.pages.clear()

    def forward(self, tokens: np.ndarray, slots: np.ndarray, start: np.ndarray, take: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Put pieces of the slots' tokens (i64[slots, length]) through the model and into the cache.

        -> hidden f32[n, width] of every token, piece after piece, and the row of each piece's last one.
        """
        self._copy(self.pages.write(slots, start, take))
        last, table = np.cumsum(take) - 1, self.pages.table
        if int(last[-1]) + 1 == len(take):
            slot, position = np.ascontiguousarray(slots), np.ascontiguousarray(start)
        else:
            slot = np.repeat(slots, take)
            position = np.arange(len(slot)) + np.repeat(start - last - 1 + take, take)
        ids = tokens[slot, position]
        hidden = torch.empty(len(slot), self.model.c.width)
        self.lib.model_forward(
            self.packed.handle, self.k.data_ptr(), self.v.data_ptr(), len(table), table.ctypes.data, table.shape[1], ids.ctypes.data,
            slot.ctypes.data, position.ctypes.data, len(slot), hidden.data_ptr(), self.threads,
        )  # fmt: skip
        return hidden, last

    def logits(self, hidden: Tensor, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """The hidden states of some rows and their logits: [R, width], f32[R, vocab]."""
        rows, vocab = np.ascontiguousarray(rows), self.model.c.vocab
        out = torch.empty(len(rows), -(-vocab // (2 * self.packed.lanes)) * 2 * self.packed.lanes)
        self.lib.model_logits(self.packed.handle, hidden.data_ptr(), rows.ctypes.data, len(rows), out.data_ptr(), self.threads)
        return hidden if len(rows) == len(hidden) and (np.diff(rows) == 1).all() else hidden[torch.from_numpy(rows)], out[:, :vocab]

    def draw(self, logits: Tensor, temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, uniform: np.ndarray) -> Draw:
        """As `sampler.draw`, which draws the rows that are truncated."""
        out = self._draw(logits, temperature, uniform, np.zeros(len(logits), np.int64))
        cut = np.flatnonzero((top_k > 0) | (top_p < 1))
        if len(cut):
            some = padded(cut)
            narrow = sampler.draw(logits[torch.from_numpy(some)], temperature[some], top_k[some], top_p[some], uniform[some])
            for x, y in zip(out, narrow, strict=True):
                x[torch.from_numpy(cut)] = y[: len(cut)]
        return out

    def logp(self, logits: Tensor, ids: np.ndarray) -> Tensor:
        """Log-probabilities f32[R] of ids i64[R] at temperature 1: the bits that `draw` gives."""
        return self._draw(logits, np.ones(len(ids)), None, np.array(ids)).logp

    def _draw(self, logits: Tensor, temperature: np.ndarray, uniform: np.ndarray | None, ids: np.ndarray) -> Draw:
        logp, by = np.empty(len(ids), np.float32), temperature.astype(np.float32)
        where = None if uniform is None else uniform.ctypes.data
        self.lib.draw(
            logits.data_ptr(), logits.stride(0), logits.shape[1], by.ctypes.data, where, uniform is None, len(ids), ids.ctypes.data,
            logp.ctypes.data, self.threads,
        )  # fmt: skip
        return Draw(torch.from_numpy(ids), torch.from_numpy(logp))


def _shape(c: Config) -> Shape:
    scale = c.look(0).scale
    return Shape(
        c.vocab, c.width, c.layers, c.heads, c.kv_heads, c.head_dim, c.hidden, ACTIVATIONS.index(c.activation), c.sandwich, c.qk_norm,
        c.norm_eps, scale, c.score_cap or 0.0, c.logit_cap or 0.0, float(torch.tensor(c.width**0.5)) if c.scaled_embedding else 1.0,
    )  # fmt: skip
