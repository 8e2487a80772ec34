"""Decoding on a GPU by CUDA graphs of fixed shapes, for the sequences with one new token each.

Row i of a graph is slot i of the cache; a slot without a token in this step writes into an unused slot, and its output
is not read. Batch sizes and numbers of keys come in few sizes, each captured on first use. Longer pieces, and what
cannot be captured, run as in `TorchRunner`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..model.attention import AttentionSpec
from ..model.transformer import Transformer
from .kv_cache import KVCache
from .step_steering import StepSteering
from .torch_runner import TorchRunner

MIN_WIDTH, MIN_KEYS = 8, 128  # sizes are these, doubled
MEMORY_FRACTION = 0.9  # of the free memory less the reserve, the part that a cache may take


def slots_that_fit(slots: int, length: int, model: Transformer, dtype: torch.dtype, free: int, reserve: int = 0) -> int:
    """The number of slots whose cache fits the free memory less the reserve (bytes); at least one."""
    c = model.config
    slot_bytes = 2 * c.layers * c.kv_heads * c.head_dim * length * torch.empty(0, dtype=dtype).element_size()
    return max(1, min(slots, int(MEMORY_FRACTION * (free - reserve) / slot_bytes) - 1))


class DecodeStep:
    """One decoding step of `width` slots over at most `keys` keys, on buffers at fixed addresses."""

    def __init__(self, model: Transformer, cache: KVCache, width: int, keys: int) -> None:
        self.model, self.cache, self.width, self.keys = model, cache, width, keys
        self.ids, self.position, self.slot = torch.zeros(3, width, dtype=torch.int64, device=cache.k.device)
        self.hidden = torch.zeros(width, model.config.width, device=cache.k.device, dtype=cache.k.dtype)
        self.graph: Any = None

    def put(self, ids: np.ndarray, position: np.ndarray, slot: np.ndarray) -> None:
        """Fill the buffers: one copy to the device."""
        whole = torch.from_numpy(np.stack([ids, position, slot])).to(self.ids.device)
        self.ids.copy_(whole[0])
        self.position.copy_(whole[1])
        self.slot.copy_(whole[2])

    def compute(self) -> None:
        """Compute the step, kernel by kernel, into `hidden`."""
        key = torch.arange(self.keys, device=self.ids.device)
        behind = self.position[:, None] - key
        masks: dict[int, Tensor] = {}
        for layer in range(self.model.config.layers):
            window = self.model.config.attention_spec(layer).window
            if window not in masks:
                hide = behind < 0 if not window else (behind < 0) | (behind >= window)
                masks[window] = torch.zeros(hide.shape, device=key.device, dtype=self.hidden.dtype).masked_fill_(
                    hide, -torch.inf
                )[:, None, None]

        def attend(spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            """Attention of q [1, width, H, hd]; the query heads of a key-value head are queries of one head."""
            keys, values = self.cache.k[spec.layer], self.cache.v[spec.layer]
            keys[self.slot, :, self.position] = k[0]
            values[self.slot, :, self.position] = v[0]
            keys, values = keys[: self.width, :, : self.keys], values[: self.width, :, : self.keys]
            x, mask = q[0].unflatten(1, (k.shape[2], -1)), masks[spec.window]
            if spec.cap is None:
                mask = mask.expand(*x.shape[:3], self.keys)
                out = F.scaled_dot_product_attention(x, keys, values, attn_mask=mask, scale=spec.scale)
            else:
                scores = torch.tanh(x * spec.scale @ keys.transpose(2, 3) / spec.cap) * spec.cap
                out = (scores + mask).softmax(-1) @ values
            return out.flatten(1, 2)[None]

        self.hidden.copy_(self.model(self.ids[None], attend, self.position[None])[0])

    def capture(self, graph_pool: Any) -> None:
        """Capture the step as a graph, after one run on a side stream that lets libraries initialise."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=graph_pool):
            self.compute()
        self.graph = graph

    def run(self) -> None:
        """Replay the graph, or compute where there is none."""
        self.graph.replay() if self.graph is not None else self.compute()


class CudaGraphRunner(TorchRunner):
    """`TorchRunner` with decoding by CUDA graphs; on other devices in the same fixed shapes without graphs."""

    def resize(self, slots: int) -> None:
        """Change the number of slots, all of them empty."""
        self.steps: dict[tuple[int, int], DecodeStep] = {}
        super().resize(slots + 1)  # the last slot takes the writes of idle rows
        self.slots = slots
        self.captures = self.cache.k.device.type == "cuda"
        self.backend = "torch, CUDA graphs" if self.captures else "torch, fixed shapes"
        self.graph_pool = torch.cuda.graph_pool_handle() if self.captures else None

    def with_new_cache(self, slots: int, length: int) -> CudaGraphRunner:
        """A runner of the same weights over another cache."""
        return CudaGraphRunner(self.model, slots, length)

    def forward(
        self,
        tokens: np.ndarray,
        slots: np.ndarray,
        start: np.ndarray,
        take: np.ndarray,
        steering: StepSteering | None = None,
    ) -> tuple[Tensor, np.ndarray]:
        """As Runner.forward; pieces of one token by a graph, longer ones and what is steered by torch."""
        if steering is not None:
            return super().forward(tokens, slots, start, take, steering)
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
        """Decode one token of each slot -> hidden [width, D] of all rows of the graph, and the rows of these slots."""
        width = min(_doubled_size(int(slots.max()) + 1, MIN_WIDTH), self.slots)
        keys = min(_doubled_size(int(start.max()) + 1, MIN_KEYS), self.cache.capacity)
        ids, position = np.zeros((2, width), np.int64)
        slot = np.full(width, self.slots)
        ids[slots], position[slots], slot[slots] = tokens[slots, start], start, slots
        step = self.steps.get((width, keys))
        if step is None:
            step = self.steps[width, keys] = DecodeStep(self.model, self.cache, width, keys)
        step.put(ids, position, slot)
        if self.captures and step.graph is None:
            self._capture(step)
        step.run()
        return step.hidden, slots

    def _capture(self, step: DecodeStep) -> None:
        """Capture a step; where that fails, run without graphs from then on."""
        try:
            step.capture(self.graph_pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.captures = False
            self.backend = f"torch, without CUDA graphs ({str(error).splitlines()[0]})"


def _doubled_size(n: int, least: int) -> int:
    """The smallest of least, 2 least, 4 least ... that holds n."""
    return least * 2 ** max(0, (-(-n // least) - 1).bit_length())
