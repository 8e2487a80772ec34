"""The key-value cache, and attention over it whose rows have the same bits in whatever company they are computed.

Measured on CPUs in float32: rows of a linear layer and of a batched product are bit-equal for every number of rows that is a multiple
of 4, and keys beyond a sequence's own, masked with -inf, change nothing if their number is a multiple of 32.
`scaled_dot_product_attention` has neither property. So rows are padded to 8, keys to 32, and attention is a batched product per
(sequence, key-value head) whose rows are (tokens x query heads of that key-value head). `exact.exact` tests it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..model import quantities
from ..model.transformer import Config, Look, Transformer
from . import sampler
from .sampler import ROWS

KEYS = 32


class Cache:
    """Keys and values of `slots` sequences: k, v [layers, slots, kv_heads, room, head_dim], room a multiple of 32."""

    def __init__(self, c: Config, slots: int, length: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32):
        self.c = c
        self.room = _up(length, KEYS)
        shape = (c.layers, slots, c.kv_heads, self.room, c.head_dim)
        # Zeros, not empty memory: a masked key weighs 0, and 0 times a stray NaN would be NaN.
        self.k, self.v = zeros(shape, device, dtype), zeros(shape, device, dtype)

    def copy(self, source: int, target: int, count: int) -> None:
        """Give a slot the first `count` tokens of another."""
        for x in (self.k, self.v):
            x[:, target, :, :count] = x[:, source, :, :count]

    def clear(self, upto: int) -> None:
        """Set the first `upto` positions of every slot to zero; untouched memory stays untouched."""
        self.k[..., :upto, :] = 0
        self.v[..., :upto, :] = 0


def zeros(shape: tuple[int, ...], device: torch.device | str, dtype: torch.dtype) -> Tensor:
    """torch.zeros, but on a CPU pages that nobody writes take no memory (torch writes them all; the system gives zeros unasked)."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = torch.from_numpy(np.zeros(size + 64, np.uint8))
    first = -raw.data_ptr() % 64  # where torch's own tensors begin
    return raw[first : first + size].view(dtype).view(shape)


class Block(NamedTuple):
    """Pieces of about one length, attended to in one batched product of P sequences x T tokens."""

    slots: slice | Tensor  # [P]
    shape: tuple[int, int]  # P, T
    rows: slice | Tensor  # [P * T]: the row of the step that stands in each cell; cells without a token repeat some row
    mask: Tensor  # [P, 1, T, 1, used]: 0 where a token may look, -inf elsewhere
    position: Tensor  # [P, 1, T, 1, 1] of the token in each cell
    last: int  # the highest of them
    cells: slice | Tensor  # the cells that hold a token, in the order of `out`
    out: slice  # the rows of the step that they are


class Step:
    """One forward pass over pieces of several sequences laid end to end; it is the `attend` of the model.

    Pieces (i64[P] each): the slot, the position of the first token, the number of tokens. `slot` and `position` [n] say where each
    row of the step stands, `last` [P] is the row of each piece's last token.
    """

    def __init__(self, cache: Cache, slots: np.ndarray, start: np.ndarray, take: np.ndarray):
        self.cache = cache
        c = cache.c
        least = 4 // math.gcd(4, c.heads // c.kv_heads)  # tokens that make a multiple of 4 rows
        width = np.maximum(2 ** np.ceil(np.log2(take)).astype(np.int64), least)
        order = np.argsort(width, kind="stable")
        first = np.zeros(len(take), np.int64)
        first[order[1:]] = np.cumsum(take[order])[:-1]
        self.last = first + take - 1
        many = take[order]
        within = np.arange(many.sum()) - np.repeat(first[order], many)
        self.slot = np.repeat(slots[order], many)
        self.position = np.repeat(start[order], many) + within
        self._slot, self._position = self._to(self.slot), self._to(self.position)
        self.blocks = [self._block(order[width[order] == w], int(w), least, slots, start, take, first) for w in np.unique(width)]
        self._masks: dict[tuple[int, int], Tensor] = {}

    def __call__(self, look: Look, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [1, N, H, hd], k and v [1, N, KV, hd], N >= n -> [1, N, H, hd]; rows from n on are padding."""
        keys, values = self.cache.k[look.layer], self.cache.v[look.layer]
        rows = len(self._slot)
        keys[self._slot, :, self._position] = k[0, :rows]
        values[self._slot, :, self._position] = v[0, :rows]
        out = torch.zeros_like(q)
        for n, block in enumerate(self.blocks):
            out[0, block.out] = _attend(look, block, self._mask(n, look.window), q[0, block.rows], keys, values)[block.cells]
        return out

    def _mask(self, n: int, window: int) -> Tensor:
        """The mask of a block for layers with this window (0: none), made once per step."""
        block = self.blocks[n]
        if not 0 < window <= block.last:
            return block.mask
        if (n, window) not in self._masks:
            key = torch.arange(block.mask.shape[-1], device=block.mask.device)
            self._masks[n, window] = block.mask.masked_fill(block.position - key >= window, -torch.inf)
        return self._masks[n, window]

    def _block(self, which: np.ndarray, t: int, least: int, slots: np.ndarray, start: np.ndarray, take: np.ndarray, first: np.ndarray) -> Block:
        """The block of the pieces `which`, all of at most `t` tokens, whose rows follow each other."""
        mine, count = slots[which], take[which]
        low, high = int(mine.min()), int(mine.max()) + 1
        used = _up(int((start[which] + count).max()), KEYS)
        out = slice(int(first[which[0]]), int(first[which[-1]] + count[-1]))
        # A run of slots is looked at where it lies. Among decoding sequences up to half of it may be idle, which costs less than copying.
        run = high - low if len(which) == high - low or (t == least and 2 * len(which) >= high - low) else 0
        at = mine - low if run else np.arange(len(which))
        p = run or len(which)
        step = np.minimum(np.arange(t), count[:, None] - 1)
        rows, position = np.zeros((p, t), np.int64), np.zeros((p, t), np.int64)
        rows[at], position[at] = first[which][:, None] + step, start[which][:, None] + step
        full = bool(t == 1 and p == len(which) and (np.diff(at) == 1).all())
        cells = np.flatnonzero((np.arange(t) < count[:, None]).ravel())
        cells = at[cells // t] * t + cells % t
        where = self._to(position)[:, None, :, None, None]
        sees = where >= torch.arange(used, device=self.cache.k.device)
        mask = torch.zeros(sees.shape, device=sees.device, dtype=self.cache.k.dtype).masked_fill_(~sees, -torch.inf)
        return Block(
            slots=slice(low, high) if run else self._to(mine),
            shape=(p, t),
            rows=out if full else self._to(rows.ravel()),
            mask=mask,
            position=where,
            last=int(position.max()),
            cells=slice(None) if full else self._to(cells),
            out=out,
        )

    def _to(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).to(self.cache.k.device)


def _attend(look: Look, block: Block, mask: Tensor, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q [P * T, H, hd] over keys, values [slots, KV, room, hd] -> [P * T, H, hd]."""
    (p, t), used, kv, hd = block.shape, block.mask.shape[-1], keys.shape[1], keys.shape[-1]
    near, seen = (
        x[block.slots].reshape(p * kv, -1, hd)[:, :used] if isinstance(block.slots, slice) else x[block.slots, :, :used].flatten(0, 1)
        for x in (keys, values)
    )
    x = (q * look.scale).view(p, t, kv, -1, hd).transpose(1, 2).reshape(p * kv, -1, hd)
    scores = torch.bmm(x, near.transpose(1, 2)).view(p, kv, t, -1, used)
    if look.cap is not None:
        scores.div_(look.cap).tanh_().mul_(look.cap)
    out = torch.bmm(scores.add_(mask).softmax(-1).view(p * kv, -1, used), seen)
    return out.view(p, kv, t, -1, hd).transpose(1, 2).reshape(p * t, -1, hd)


class Plain:
    """A model and its cache of `slots` sequences, and steps over both, by torch: on any device, for every model."""

    how = "torch"

    def __init__(self, model: Transformer, slots: int, length: int):
        self.model, self.pads, self.length = model, True, length
        self.resize(slots)

    def resize(self, slots: int) -> None:
        """Another number of slots, all of them empty."""
        weight = self.model.lm_head.weight
        self.cache: Any = None  # before the next one is had
        self.cache = Cache(self.model.c, slots, self.length, weight.device, weight.dtype)

    def fresh(self, slots: int, length: int) -> Plain:
        """The same weights over another cache."""
        return Plain(self.model, slots, length)

    def load(self) -> None:
        """The model's weights have changed in place: nothing to do."""

    def share(self, source: int, target: int, count: int) -> int:
        """As Runner.share, by copying."""
        if source == target:
            return 0
        self.cache.copy(source, target, count)
        return count

    def clear(self, upto: int) -> None:
        self.cache.clear(upto)

    def forward(self, tokens: np.ndarray, slots: np.ndarray, start: np.ndarray, take: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Put pieces of the slots' tokens (i64[slots, length]) through the model and into the cache, from `start` on, `take` of each.

        -> hidden [N, width] of every token, a piece's one after the other, and the row of each piece's last one.
        """
        step = Step(self.cache, slots, start, take)
        n = len(step.slot)
        ids, position = np.zeros((2, 1, _up(n, ROWS)), np.int64)
        ids[0, :n], position[0, :n] = tokens[step.slot, step.position], step.position
        return self.model(step._to(ids), step, step._to(position))[0], step.last

    def logits(self, hidden: Tensor, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """The hidden states of some rows, padded, and their logits: [R, width], f32[R, vocab]."""
        if len(rows) != len(hidden) or (np.diff(rows) != 1).any():
            hidden = hidden[torch.from_numpy(rows).to(hidden.device)]
        return hidden, self.model.logits(hidden).float()

    def draw(self, logits: Tensor, temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, uniform: np.ndarray) -> sampler.Draw:
        return sampler.draw(logits, temperature, top_k, top_p, uniform)

    def logp(self, logits: Tensor, ids: np.ndarray) -> Tensor:
        """Log-probabilities f32[R] of ids i64[R] at temperature 1: the bits that `draw` gives."""
        return quantities.logprobs(logits, 1.0).gather(-1, torch.from_numpy(ids).to(logits.device)[:, None])[:, 0]


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
