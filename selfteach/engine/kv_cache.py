"""The key-value cache in torch, and batch-invariant attention over it.

Measured on CPUs in float32: rows of a linear layer and of a batched matmul are bit-equal for every number of rows that
is a multiple of 4, and keys beyond a sequence's own, masked with -inf, change nothing if their number is a multiple of
32. `scaled_dot_product_attention` has neither property. So rows are padded to 8, keys to 32, and attention is a batched
matmul per (sequence, key-value head) whose rows are (tokens x query heads of that key-value head).
`batch_invariance.is_batch_invariant` tests it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..model.attention import AttentionSpec
from ..model.transformer import Config

KEY_MULTIPLE = 32


class KVCache:
    """Keys and values of `slots` sequences: k, v [layers, slots, kv_heads, capacity, head_dim]; capacity in 32s."""

    def __init__(
        self, c: Config, slots: int, length: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.config = c
        self.capacity = round_up(length, KEY_MULTIPLE)
        shape = (c.layers, slots, c.kv_heads, self.capacity, c.head_dim)
        # Zeros, not empty memory: a masked key weighs 0, and 0 times a stray NaN would be NaN.
        self.k, self.v = zeros(shape, device, dtype), zeros(shape, device, dtype)

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first `count` tokens of one slot to another."""
        for x in (self.k, self.v):
            x[:, target, :, :count] = x[:, source, :, :count]

    def clear(self, upto: int) -> None:
        """Set the first `upto` positions of every slot to zero; untouched memory stays untouched."""
        self.k[..., :upto, :] = 0
        self.v[..., :upto, :] = 0


def zeros(shape: tuple[int, ...], device: torch.device | str, dtype: torch.dtype) -> Tensor:
    """Zeros as by torch.zeros, but on a CPU memory pages are taken only when written.

    torch writes all of them; the system's fresh pages are zeros already.
    """
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = torch.from_numpy(np.zeros(size + 64, np.uint8))
    first = -raw.data_ptr() % 64  # the alignment of torch's own tensors
    return raw[first : first + size].view(dtype).view(shape)


class AttentionBatch(NamedTuple):
    """Pieces of similar length, computed in one batched matmul of P sequences x T tokens."""

    slots: slice | Tensor  # [P]
    shape: tuple[int, int]  # P, T
    rows: slice | Tensor  # [P * T]: the row of the step in each cell; cells without a token repeat some row
    mask: Tensor  # [P, 1, T, 1, used]: 0 where a token attends, -inf elsewhere
    position: Tensor  # [P, 1, T, 1, 1] of the token in each cell
    last: int  # the highest of them
    cells: slice | Tensor  # the cells that hold a token, in the order of `out`
    out: slice  # the rows of the step that they are


class CachedAttention:
    """The attention of one forward pass over concatenated pieces of several sequences; writes to the cache.

    slots, start, take  i64[P]  of each piece: its slot, the position of its first token, its number of tokens
    slot, position      i64[n]  of each row of the forward pass
    last                i64[P]  row of each piece's last token
    """

    def __init__(self, cache: KVCache, slots: np.ndarray, start: np.ndarray, take: np.ndarray) -> None:
        self.cache = cache
        c = cache.config
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
        self.batches = [
            self._batch(order[width[order] == w], int(w), least, slots, start, take, first) for w in np.unique(width)
        ]
        self._masks: dict[tuple[int, int], Tensor] = {}

    def __call__(self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q [1, N, H, hd] to k, v [1, N, KV, hd], N >= n -> [1, N, H, hd]; rows from n on are padding."""
        keys, values = self.cache.k[spec.layer], self.cache.v[spec.layer]
        rows = len(self._slot)
        keys[self._slot, :, self._position] = k[0, :rows]
        values[self._slot, :, self._position] = v[0, :rows]
        out = torch.zeros_like(q)
        for n, batch in enumerate(self.batches):
            out[0, batch.out] = _attend(spec, batch, self._mask(n, spec.window), q[0, batch.rows], keys, values)[
                batch.cells
            ]
        return out

    def _mask(self, n: int, window: int) -> Tensor:
        """The mask of a batch for layers with this window (0: none), made once per step."""
        batch = self.batches[n]
        if not 0 < window <= batch.last:
            return batch.mask
        if (n, window) not in self._masks:
            key = torch.arange(batch.mask.shape[-1], device=batch.mask.device)
            self._masks[n, window] = batch.mask.masked_fill(batch.position - key >= window, -torch.inf)
        return self._masks[n, window]

    def _batch(
        self,
        which: np.ndarray,
        t: int,
        least: int,
        slots: np.ndarray,
        start: np.ndarray,
        take: np.ndarray,
        first: np.ndarray,
    ) -> AttentionBatch:
        """The batch of the pieces `which`, all of at most `t` tokens, whose rows are consecutive."""
        mine, count = slots[which], take[which]
        low, high = int(mine.min()), int(mine.max()) + 1
        used = round_up(int((start[which] + count).max()), KEY_MULTIPLE)
        out = slice(int(first[which[0]]), int(first[which[-1]] + count[-1]))
        # Consecutive slots are read in place. Among decoding sequences up to half of them may be idle, which costs less
        # than copying.
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
        return AttentionBatch(
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


def _attend(
    spec: AttentionSpec, batch: AttentionBatch, mask: Tensor, q: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Attention of q [P * T, H, hd] to keys, values [slots, KV, capacity, hd] -> [P * T, H, hd]."""
    (p, t), used, kv, hd = batch.shape, batch.mask.shape[-1], keys.shape[1], keys.shape[-1]
    keys, values = (
        x[batch.slots].reshape(p * kv, -1, hd)[:, :used]
        if isinstance(batch.slots, slice)
        else x[batch.slots, :, :used].flatten(0, 1)
        for x in (keys, values)
    )
    x = (q * spec.scale).view(p, t, kv, -1, hd).transpose(1, 2).reshape(p * kv, -1, hd)
    scores = torch.bmm(x, keys.transpose(1, 2)).view(p, kv, t, -1, used)
    if spec.cap is not None:
        scores.div_(spec.cap).tanh_().mul_(spec.cap)
    out = torch.bmm(scores.add_(mask).softmax(-1).view(p * kv, -1, used), values)
    return out.view(p, kv, t, -1, hd).transpose(1, 2).reshape(p * t, -1, hd)


def round_up(n: int, unit: int) -> int:
    """The smallest multiple of `unit` that is at least n."""
    return -(-n // unit) * unit
