"""The roofline model: the least cost of a workload (FLOPs and bytes), and the most tokens per second at given rates.

A product of [n, a] by [a, b] is 2nab FLOPs. Only what no implementation can leave out is counted: weights are read once
per forward pass, the cache once per token that attends to it, a prompt that several sequences share once, the LM head
only where a distribution is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..model.transformer import Config

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Cost:
    """FLOPs, bytes moved, the tokens that a rate counts, and the working set in bytes (`resident`)."""

    flops: float
    bytes: float
    tokens: int
    resident: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            self.bytes + other.bytes,
            self.tokens + other.tokens,
            max(self.resident, other.resident),
        )

    def seconds(self, rate: float, bandwidth: float) -> float:
        """The least time, compute and memory traffic fully overlapped: max(flops / rate, bytes / bandwidth)."""
        return max(self.flops / rate, self.bytes / bandwidth)

    def limit(self, rate: float, bandwidth: float) -> dict[str, Any]:
        """The limit with its terms; rate in FLOP/s, bandwidth in bytes/s."""
        return {
            "tokens_per_second": self.tokens / self.seconds(rate, bandwidth),
            "compute_alone": self.tokens / (self.flops / rate),
            "memory_alone": self.tokens / (self.bytes / bandwidth) if self.bytes else None,
            "flops_per_token": self.flops / self.tokens,
            "bytes_per_token": self.bytes / self.tokens,
            "bound_by": "compute" if self.flops / rate >= self.bytes / bandwidth else "memory",
            "flop_per_second": rate,
            "bytes_per_second": bandwidth,
            "resident_bytes": self.resident,
        }


def body(c: Config) -> int:
    """Weights of the layers' products: q, k, v, o and the gated MLP."""
    return c.layers * (c.width * c.head_dim * 2 * (c.heads + c.kv_heads) + 3 * c.width * c.hidden)


def attention(c: Config, start: int, stop: int) -> float:
    """FLOPs of attention for the tokens at positions start:stop, each of which sees itself and all before it."""
    keys = (stop * (stop + 1) - start * (start + 1)) / 2
    return 4.0 * c.layers * c.heads * c.head_dim * keys


def rollout(c: Config, width: int, prompt: int, new: int, dtype: str, group_size: int = 1) -> Cost:
    """The cost of sampling `new` tokens in each of `width` sequences, of which `group_size` share a prompt.

    The last sampled token is not an input.
    """
    itemsize, head, groups = BYTES[dtype], c.vocab * c.width, width // group_size
    inputs = groups * prompt + width * (new - 1)
    products = 2.0 * (inputs * body(c) + width * new * head)
    attended = groups * attention(c, 0, prompt) + width * attention(c, prompt, prompt + new - 1)
    weights = itemsize * (body(c) + head)
    # Entries of the cache: all are written once; each sampled token but the first reads the prompt (once for its
    # group) and what follows it.
    entries = inputs + (new - 1) * groups * prompt + width * sum(range(1, new))
    entry = 2 * c.layers * c.kv_heads * c.head_dim * itemsize  # bytes of keys and values of one token
    return Cost(products + attended, new * weights + entry * entries, width * new, weights + entry * inputs)


def learn(c: Config, groups: Iterable[tuple[int, Iterable[int]]]) -> Cost:
    """The cost of forward and backward (three times the forward pass) and AdamW over groups of sequences: (tokens of
    the shared prompt, tokens of each response).

    Tokens are those that had to be computed: a prompt once. AdamW reads weight, gradient and two moments and writes
    three of them, in float32.
    """
    flops, tokens = 0.0, 0
    for prompt, responses in groups:
        lengths = list(responses)
        inputs = prompt + sum(n - 1 for n in lengths)  # a response's last token is predicted, never an input
        flops += 2.0 * (inputs * body(c) + sum(lengths) * c.vocab * c.width) + attention(c, 0, prompt)
        flops += sum(attention(c, prompt, prompt + n - 1) for n in lengths)
        tokens += prompt + sum(lengths)
    weights = body(c) + c.vocab * c.width * (1 if c.tied else 2)
    return Cost(3 * flops, 28.0 * weights, tokens, 16.0 * weights)


def limits_of(costs: Mapping[str, Cost], machine: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """The limit in each precision, at the rates that `own.machine` measured: {"float32", "bfloat16": FLOP/s,
    "read/BYTES": bytes/s}.
    """
    return {dtype: n.limit(machine[dtype], machine[bandwidth_name(n.resident)]) for dtype, n in costs.items()}


def bandwidth_name(size: float) -> str:
    """The name of the bandwidth over a set of this many bytes, rounded up to a power of two between 4 MB and 512 MB."""
    megabytes = 4
    while megabytes < 512 and megabytes * 2**20 < size:
        megabytes *= 2
    return f"read/{megabytes}MB"
