"""The runner in C++ (kernels/decode.cpp): packed weights of a model, and a paged cache."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..kernels import decode
from ..kernels.decode import PAGE
from ..model.transformer import Config, RMSNorm, Transformer
from . import sampler
from .kv_cache import zeros
from .page_table import PageCopy, PageTable
from .sampler import Draw, pad_rows
from .step_steering import StepSteering

DTYPES = (torch.float32, torch.bfloat16)
# Largest cache, in bytes, on the system's huge pages: faster, but a page takes memory as soon as any of it is used.
HUGE_PAGES_BELOW = 1 << 28

# Steps that are computed in one call: while it lasts no request can join them.
MAX_STEPS = 16
WORK_AT_ONCE = 1 << 27  # weights times sequences


def unsupported_reason(model: Transformer, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why decode.cpp cannot run a model; None where it can."""
    if device.type != "cpu":
        return f"weights on {device}"
    if dtype not in DTYPES:
        return f"weights as {dtype}"
    if model.named_tensors().keys() != Transformer.without_weights(model.config).named_tensors().keys():
        return "modules besides those of its config"
    return library if isinstance(library := decode.decode_library(), str) else None


class PackedWeights:
    """A model's weights in the layout of decode.cpp, in float32 or bfloat16; the model itself stays in float32."""

    def __init__(self, model: Transformer, dtype: torch.dtype = torch.float32) -> None:
        lib = decode.decode_library()
        assert not isinstance(lib, str)
        self.lib, self.model, self.config, self.dtype = lib, model, model.config, dtype
        self.lanes = int(lib.lanes())
        self.handle = lib.model_new(ctypes.byref(_native_shape(model.config)), dtype == torch.bfloat16)
        self.load()

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.lib.model_free(self.handle)

    def load(self) -> None:
        """Pack the model's current weights."""
        trunk: Any = self.model.model
        self.in_place = [trunk.embed_tokens.weight.detach().contiguous()]  # tensors that decode.cpp reads in place
        self.lib.model_embedding(self.handle, self.in_place[0].data_ptr())
        for n, (layer, table) in enumerate(zip(trunk.layers, self.model.rotary_tables, strict=True)):
            attention, mlp = layer.self_attn, layer.mlp
            qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
            gate, up = mlp.gate_proj, mlp.up_proj
            qkv_bias = None if qkv[0].bias is None else torch.cat([m.bias for m in qkv])
            mlp_bias = None if gate.bias is None else self._interleaved(gate.bias, up.bias)
            self._pack_matrix(n, decode.QKV, torch.cat([m.weight for m in qkv]), qkv_bias)
            self._pack_matrix(n, decode.OUT, attention.o_proj.weight, attention.o_proj.bias)
            self._pack_matrix(n, decode.GATE_UP, self._interleaved(gate.weight, up.weight), mlp_bias)
            self._pack_matrix(n, decode.DOWN, mlp.down_proj.weight, mlp.down_proj.bias)
            self._pack_norm(n, decode.INPUT_NORM, layer.input_layernorm)
            self._pack_norm(n, decode.POST_ATTENTION_NORM, layer.post_attention_layernorm)
            if self.config.sandwich:
                self._pack_norm(n, decode.PRE_MLP_NORM, layer.pre_feedforward_layernorm)
                self._pack_norm(n, decode.POST_MLP_NORM, layer.post_feedforward_layernorm)
            if self.config.qk_norm:
                self._pack_norm(n, decode.Q_NORM, attention.q_norm)
                self._pack_norm(n, decode.K_NORM, attention.k_norm)
            names = [] if table is None else [f"{table}cos", f"{table}sin"]
            rotary = [self.model.get_buffer(name).contiguous() for name in names]
            self.in_place += rotary
            self.lib.model_layer(
                self.handle, n, attention.spec.window, *([t.data_ptr() for t in rotary] or [None, None])
            )
        self._pack_norm(-1, 0, trunk.norm)
        self._pack_matrix(-1, 0, self.model.lm_head.weight, None)

    def _pack_matrix(self, layer: int, which: int, weight: Tensor, bias: Tensor | None) -> None:
        weight, bias = weight.detach().contiguous(), None if bias is None else bias.detach().contiguous()
        where = None if bias is None else bias.data_ptr()
        self.lib.model_matrix(
            self.handle, layer, which, weight.data_ptr(), *weight.shape, where, torch.get_num_threads()
        )

    def _pack_norm(self, layer: int, which: int, norm: RMSNorm) -> None:
        weight = (1 + norm.weight if norm.centred else norm.weight).detach().contiguous()
        self.lib.model_norm(self.handle, layer, which, weight.data_ptr(), len(weight))

    def _interleaved(self, gate: Tensor, up: Tensor) -> Tensor:
        """Rows of two matrices [n, ...], alternating by a vector's width, the last padded with zeros."""
        fill = [0, 0] * (gate.ndim - 1) + [0, -len(gate) % self.lanes]
        gate, up = (torch.nn.functional.pad(x.detach(), fill).unflatten(0, (-1, self.lanes)) for x in (gate, up))
        return torch.stack([gate, up], 1).flatten(0, 2)


class NativeRunner:
    """A Runner by decode.cpp: packed weights and a paged cache of `slots` sequences.

    A row's bits depend on its own sequence alone, on any number of threads. Sequences with a common prefix share its
    pages of the cache (page_table.py) and attend to them together.
    """

    needs_padding = False

    def __init__(self, packed: PackedWeights, slots: int, length: int) -> None:
        self.packed, self.lib, self.model, self.length = packed, packed.lib, packed.model, length
        self.backend = f"native, {str(packed.dtype).removeprefix('torch.')}"
        self.n_weights = sum(p.numel() for p in self.model.parameters())
        self.resize(slots)

    def resize(self, slots: int) -> None:
        """Change the number of slots, all of them empty."""
        c, dtype, lanes = self.model.config, self.packed.dtype, self.packed.lanes
        self.k = self.v = torch.empty(0)  # frees the old ones first
        self.raw: list[np.ndarray] = []
        self.pages = PageTable(slots, -(-self.length // PAGE))
        shape, capacity = (c.layers, slots, c.kv_heads), PAGE * self.pages.table.shape[1]
        self.k = zeros((*shape, capacity // lanes, c.head_dim, lanes), "cpu", dtype)
        self.v = zeros((*shape, capacity, -(-c.head_dim // lanes) * lanes), "cpu", dtype)
        # The same memory for NumPy, to which a small copy costs a third of what it costs torch.
        self.raw = [x.view(torch.int16 if dtype == torch.bfloat16 else torch.int32).numpy() for x in (self.k, self.v)]
        if self.k.nbytes <= HUGE_PAGES_BELOW:
            for x in (self.k, self.v):
                self.lib.large_pages(x.data_ptr(), x.nbytes)

    def with_new_cache(self, slots: int, length: int) -> NativeRunner:
        """A runner of the same weights over another cache."""
        return NativeRunner(self.packed, slots, length)

    def load(self) -> None:
        """Pack the weights again, after they changed in place."""
        self.packed.load()

    @property
    def threads(self) -> int:
        """The number of threads, as torch has it."""
        return torch.get_num_threads()

    def share_prefix(self, source: int, target: int, count: int) -> int:
        """As Runner.share_prefix: full pages are shared, and the last one is copied if it is not full."""
        copies = self.pages.share_prefix(source, target, count)
        self._copy(copies)
        return sum(c.stop - c.start for c in copies)

    def _copy(self, copies: list[PageCopy]) -> None:
        k, v = self.raw
        for source, target, start, stop in copies:
            blocks = slice(start // self.packed.lanes, -(-stop // self.packed.lanes))
            k[:, target, :, blocks] = k[:, source, :, blocks]
            v[:, target, :, start:stop] = v[:, source, :, start:stop]

    def clear(self, upto: int) -> None:
        """Release all pages; a key that a row does not attend to is never read."""
        self.pages.clear()

    def forward(
        self,
        tokens: np.ndarray,
        slots: np.ndarray,
        start: np.ndarray,
        take: np.ndarray,
        steering: StepSteering | None = None,
    ) -> tuple[Tensor, np.ndarray]:
        """As Runner.forward: hidden f32[n, width] of every token, piece after piece, and each piece's last row."""
        self._copy(self.pages.write(slots, start, take))
        last, table = np.cumsum(take) - 1, self.pages.table
        if int(last[-1]) + 1 == len(take):
            slot, position = np.ascontiguousarray(slots), np.ascontiguousarray(start)
        else:
            slot = np.repeat(slots, take)
            position = np.arange(len(slot)) + np.repeat(start - last - 1 + take, take)
        ids = tokens[slot, position]
        hidden = torch.empty(len(slot), self.model.config.width)
        cache = self.k.data_ptr(), self.v.data_ptr(), len(table), table.ctypes.data, table.shape[1]
        rows = ids.ctypes.data, slot.ctypes.data, position.ctypes.data, len(slot)
        added = (None, None, None)
        if steering is not None:
            of_row = steering.of_rows(slot, position)
            added = of_row.ctypes.data, steering.layer.ctypes.data, steering.vectors.ctypes.data
        self.lib.model_forward(self.packed.handle, *cache, *rows, *added, hidden.data_ptr(), self.threads)
        return hidden, last

    def logits(self, hidden: Tensor, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """As Runner.logits: [R, width], f32[R, vocab]."""
        rows, vocab = np.ascontiguousarray(rows), self.model.config.vocab
        out = torch.empty(len(rows), -(-vocab // (2 * self.packed.lanes)) * 2 * self.packed.lanes)
        self.lib.model_logits(
            self.packed.handle, hidden.data_ptr(), rows.ctypes.data, len(rows), out.data_ptr(), self.threads
        )
        in_order = len(rows) == len(hidden) and (np.diff(rows) == 1).all()
        return hidden if in_order else hidden[torch.from_numpy(rows)], out[:, :vocab]

    def draw(
        self, logits: Tensor, temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, uniform: np.ndarray
    ) -> Draw:
        """As `sampler.draw`, which does the rows with top-k or top-p."""
        out = self._draw(logits, temperature, uniform, np.zeros(len(logits), np.int64))
        cut = np.flatnonzero((top_k > 0) | (top_p < 1))
        if len(cut):
            some = pad_rows(cut)
            truncated = sampler.draw(
                logits[torch.from_numpy(some)], temperature[some], top_k[some], top_p[some], uniform[some]
            )
            for x, y in zip(out, truncated, strict=True):
                x[torch.from_numpy(cut)] = y[: len(cut)]
        return out

    def logp(self, logits: Tensor, ids: np.ndarray) -> Tensor:
        """As Runner.logp."""
        return self._draw(logits, np.ones(len(ids)), None, np.array(ids)).logp

    def steps_at_once(self, rows: int) -> int:
        """As MultiStepRunner.steps_at_once: one, or several where these are a few milliseconds of work."""
        return min(max(WORK_AT_ONCE // (rows * self.n_weights), 1), MAX_STEPS)

    def generate(
        self,
        tokens: np.ndarray,
        logp: np.ndarray,
        slots: np.ndarray,
        known: np.ndarray,
        limit: np.ndarray,
        temperature: np.ndarray,
        uniform: np.ndarray,
        stops: tuple[np.ndarray, np.ndarray],
        enough: int,
    ) -> int:
        """As MultiStepRunner.generate."""
        steps, table = uniform.shape[1], self.pages.table
        self._copy(self.pages.write(slots, known - 1, np.minimum(steps, limit - known)))
        temperature = temperature.astype(np.float32)
        cache = self.k.data_ptr(), self.v.data_ptr(), len(table), table.ctypes.data, table.shape[1]
        texts = tokens.ctypes.data, logp.ctypes.data, tokens.shape[1]
        rows = [x.ctypes.data for x in (slots, known, limit, temperature, uniform, *stops)]
        return self.lib.generate(self.packed.handle, *cache, *texts, *rows, len(slots), steps, enough, self.threads)

    def _draw(self, logits: Tensor, temperature: np.ndarray, uniform: np.ndarray | None, ids: np.ndarray) -> Draw:
        logp, temperature = np.empty(len(ids), np.float32), temperature.astype(np.float32)
        given = logits.data_ptr(), logits.stride(0), logits.shape[1], temperature.ctypes.data
        where = None if uniform is None else uniform.ctypes.data
        out = len(ids), ids.ctypes.data, logp.ctypes.data
        self.lib.draw(*given, where, uniform is None, *out, self.threads)
        return Draw(torch.from_numpy(ids), torch.from_numpy(logp))


def _native_shape(c: Config) -> decode.Shape:
    """A model's shape for decode.cpp."""
    embedding_scale = float(torch.tensor(c.width**0.5)) if c.scaled_embedding else 1.0
    sizes = c.vocab, c.width, c.layers, c.heads, c.kv_heads, c.head_dim, c.hidden
    kinds = decode.ACTIVATIONS.index(c.activation), c.sandwich, c.qk_norm
    caps = c.score_cap or 0.0, c.logit_cap or 0.0
    return decode.Shape(*sizes, *kinds, c.norm_eps, c.attention_spec(0).scale, *caps, embedding_scale)
