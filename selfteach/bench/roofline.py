"""What a piece of work needs at least (products and memory traffic), and so how fast a machine of given rates could do
it.

A product of [n, a] by [a, b] is 2nab FLOPs. Only what no implementation can leave out is counted: weights are read once
per forward pass, the cache once per token that attends to it, prompts that several sequences share once, the head only
where a distribution is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..model.transformer import Config

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Need:
    """FLOPs and bytes of a piece of work, the tokens that its speed counts, and the bytes that it goes over again and
    again.
    """

    flops: float
    bytes: float
    tokens: int
    resident: float = 0.0

    def __add__(self, other: Need) -> Need:
        return Need(
            self.flops + other.flops,
            self.bytes + other.bytes,
            self.tokens + other.tokens,
            max(self.resident, other.resident),
        )

    def seconds(self, rate: float, bandwidth: float) -> float:
        """The least time, products and traffic side by side: max(flops / rate, bytes / bandwidth)."""
        return max(self.flops / rate, self.bytes / bandwidth)

    def figures(self, rate: float, bandwidth: float) -> dict[str, Any]:
        """The limit with all that it is made of; rate in FLOP/s, bandwidth in bytes/s."""
        return {
            "tokens_per_second": self.tokens / self.seconds(rate, bandwidth),
            "products_alone": self.tokens / (self.flops / rate),
            "traffic_alone": self.tokens / (self.bytes / bandwidth) if self.bytes else None,
            "flops_per_token": self.flops / self.tokens,
            "bytes_per_token": self.bytes / self.tokens,
            "bound_by": "products" if self.flops / rate >= self.bytes / bandwidth else "traffic",
            "flop_per_second": rate,
            "bytes_per_second": bandwidth,
            "resident_bytes": self.resident,
        }


def body(c: Config) -> int:
    """Weights of the layers' products: q, k, v, o and the gated MLP."""
    return c.layers * (c.width * c.head_dim * 2 * (c.heads + c.kv_heads) + 3 * c.width * c.hidden)


def attention(c: Config, start: int, stop: int) -> float:
    """FLOPs of attention for the tokens at positions start:stop, each of which sees itself and all before it."""
    seen = (stop * (stop + 1) - start * (start + 1)) / 2
    return 4.0 * c.layers * c.heads * c.head_dim * seen


def rollout(c: Config, width: int, prompt: int, new: int, dtype: str, siblings: int = 1) -> Need:
    """`width` sequences that draw `new` tokens, each `siblings` of them after one prompt.

    The token drawn last is not read again.
    """
    size, head, groups = BYTES[dtype], c.vocab * c.width, width // siblings
    put = groups * prompt + width * (new - 1)
    products = 2.0 * (put * body(c) + width * new * head)
    attended = groups * attention(c, 0, prompt) + width * attention(c, prompt, prompt + new - 1)
    weights = size * (body(c) + head)
    # Entries of the cache: all are written once; each token drawn but the first reads the prompt (once for all
    # siblings) and what follows it.
    own = width * sum(range(1, new))
    entries = put + (new - 1) * groups * prompt + own
    entry = 2 * c.layers * c.kv_heads * c.head_dim * size  # bytes of keys and values of one token
    return Need(products + attended, new * weights + entry * entries, width * new, weights + entry * put)


def learn(c: Config, families: Iterable[tuple[int, Iterable[int]]]) -> Need:
    """Forward and backward (three times the forward pass) and AdamW over families: (tokens of the shared prompt,
    learned tokens of each branch).

    Tokens are those that had to be computed: a prompt once. AdamW reads weight, gradient and two moments and writes
    three of them, in float32.
    """
    flops, tokens = 0.0, 0
    for trunk, branches in families:
        own = list(branches)
        put = trunk + sum(n - 1 for n in own)  # a branch's last token is predicted, never read
        flops += 2.0 * (put * body(c) + sum(own) * c.vocab * c.width) + attention(c, 0, trunk)
        flops += sum(attention(c, trunk, trunk + n - 1) for n in own)
        tokens += trunk + sum(own)
    weights = body(c) + c.vocab * c.width * (1 if c.tied else 2)
    return Need(3 * flops, 28.0 * weights, tokens, 16.0 * weights)


def bounds(need: Mapping[str, Need], machine: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """The limit in each precision, from rates as `own.machine` measured them: {"float32", "bfloat16": FLOP/s,
    "read/BYTES": bytes/s}.
    """
    return {dtype: n.figures(machine[dtype], machine[read_name(n.resident)]) for dtype, n in need.items()}


def read_name(size: float) -> str:
    """The name of the bandwidth over a set of this many bytes, rounded up to a power of two between 4 MB and 512 MB."""
    megabytes = 4
    while megabytes < 512 and megabytes * 2**20 < size:
        megabytes *= 2
    return f"read/{megabytes}MB"
