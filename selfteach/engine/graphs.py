"""Decoding on a GPU: the sequences that put in one token each go through the model as one captured graph of fixed shapes.

Row i of a graph is slot i of the cache; a slot that has no token this step writes into a spare one and is computed for nothing. Widths and
numbers of keys come in few sizes, each captured when first needed. Longer pieces, and what cannot be captured, go the plain way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..model.transformer import Look, Transformer
from .cache import Cache, Plain

LEAST_WIDTH, LEAST_KEYS = 8, 128  # sizes are these, doubled
SHARE = 0.9  # of the memory that is free and not wanted by others, what a cache may take


def fitting(slots: int, length: int, model: Transformer, dtype: torch.dtype, free: int, reserve: int = 0) -> int:
    """How many slots, of those asked for, fit the memory (bytes) that is free less what others will want; at least one."""
    c = model.c
    each = 2 * c.layers * c.kv_heads * c.head_dim * length * torch.empty(0, dtype=dtype).element_size()
    return max(1, min(slots, int(SHARE * (free - reserve) / each) - 1))


class Decode:
    """One step of `width` slots over at most `keys` keys, on buffers that stay where they are; it is the `attend` of the model."""

    def __init__(self, model: Transformer, cache: Cache, width: int, keys: int):
        self.model, self.cache, self.width, self.keys = model, cache, width, keys
        self.ids, self.position, self.slot = torch.zeros(3, width, dtype=torch.int64, device=cache.k.device)
        self.hidden = torch.zeros(width, model.c.width, device=cache.k.device, dtype=cache.k.dtype)
        self.graph: Any = None

    def put(self, ids: np.ndarray, position: np.ndarray, slot: np.ndarray) -> None:
        """Fill the buffers: one copy to the device."""
        whole = torch.from_numpy(np.stack([ids, position, slot])).to(self.ids.device)
        self.ids.copy_(whole[0])
        self.position.copy_(whole[1])
        self.slot.copy_(whole[2])

    def compute(self) -> None:
        """The step itself, kernel by kernel, into `hidden`."""
        key = torch.arange(self.keys, device=self.ids.device)
        behind = self.position[:, None] - key
        masks: dict[int, Tensor] = {}
        for layer in range(self.model.c.layers):
            window = self.model.c.look(layer).window
            if window not in masks:
                hide = behind < 0 if not window else (behind < 0) | (behind >= window)
                masks[window] = torch.zeros(hide.shape, device=key.device, dtype=self.hidden.dtype).masked_fill_(hide, -torch.inf)[:, None, None]

        def attend(look: Look, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            """q [1, width, H, hd]: the query heads of one key-value head stand as if they were queries of one head."""
            keys, values = self.cache.k[look.layer], self.cache.v[look.layer]
            keys[self.slot, :, self.position] = k[0]
            values[self.slot, :, self.position] = v[0]
            near, seen = keys[: self.width, :, : self.keys], values[: self.width, :, : self.keys]
            x, mask = q[0].unflatten(1, (k.shape[2], -1)), masks[look.window]
            if look.cap is None:
                mask = mask.expand(*x.shape[:3], self.keys)
                out = F.scaled_dot_product_attention(x, near, seen, attn_mask=mask, scale=look.scale)
            else:
                scores = torch.tanh(x * look.scale @ near.transpose(2, 3) / look.cap) * look.cap
                out = (scores + mask).softmax(-1) @ seen
            return out.flatten(1, 2)[None]

        self.hidden.copy_(self.model(self.ids[None], attend, self.position[None])[0])

    def capture(self, pool: Any) -> None:
        """Record the step as a graph; it must have run once before, so that libraries have made what they make on first use."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self.compute()
        self.graph = graph

    def run(self) -> None:
        self.graph.replay() if self.graph is not None else self.compute()


class Graphed(Plain):
    """`Plain`, with decoding by graphs where the device has them; elsewhere the same fixed shapes kernel by kernel."""

    def resize(self, slots: int) -> None:
        self.made: dict[tuple[int, int], Decode] = {}
        super().resize(slots + 1)  # the last slot is nobody's
        self.slots = slots
        self.captures = self.cache.k.device.type == "cuda"
        self.how = "torch, CUDA graphs" if self.captures else "torch, fixed shapes"
        self.pool = torch.cuda.graph_pool_handle() if self.captures else None

    def fresh(self, slots: int, length: int) -> Graphed:
        return Graphed(self.model, slots, length)

    def forward(self, tokens: np.ndarray, slots: np.ndarray, start: np.ndarray, take: np.ndarray) -> tuple[Tensor, np.ndarray]:
        one = take == 1
        if not one.any():
            return super().forward(tokens, slots, start, take)
        hidden, last = self._decode(tokens, slots[one], start[one])
        if one.all():
            return hidden, last
        more, after = super().forward(tokens, slots[~one], start[~one], take[~one])
        rows = np.zeros(len(slots), np.int64)
        rows[one], rows[~one] = last, after + len(hidden)
        return torch.cat([hidden, more]), rows

    def _decode(self, tokens: np.ndarray, slots: np.ndarray, start: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """One token of each slot -> hidden of all rows of the graph, and the rows that are these slots: their own numbers."""
        width = min(_size(int(slots.max()) + 1, LEAST_WIDTH), self.slots)
        keys = min(_size(int(start.max()) + 1, LEAST_KEYS), self.cache.room)
        ids, position = np.zeros((2, width), np.int64)
        slot = np.full(width, self.slots)
        ids[slots], position[slots], slot[slots] = tokens[slots, start], start, slots
        step = self.made.get((width, keys))
        if step is None:
            step = self.made[width, keys] = Decode(self.model, self.cache, width, keys)
        step.put(ids, position, slot)
        if self.captures and step.graph is None:
            self._capture(step)
        step.run()
        return step.hidden, slots

    def _capture(self, step: Decode) -> None:
        """Capture a step; where that fails, kernels one by one from then on."""
        try:
            step.capture(self.pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.captures = False
            self.how = f"torch, without CUDA graphs ({str(error).splitlines()[0]})"


def _size(n: int, least: int) -> int:
    """The smallest of least, 2 least, 4 least ... that holds n."""
    return least * 2 ** max(0, (-(-n // least) - 1).bit_length())
