"""The memory plan of a run: estimated from shapes before it starts, and refused where it cannot fit."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..core.errors import BadValue
from ..core.method import Method
from ..kernels import matmul_bf16
from ..kernels.decode import PAGE
from ..learner.columns import CHUNK_LOGITS, MAX_KEPT_LOGITS, ROW_MULTIPLE
from ..model.transformer import Config
from .engine_roles import engine_model_roles

MEGA = 1 << 20
# The option that lowers each part.
REMEDIES = {
    "weights": "a smaller --model, or a method without a second model",
    "gradients": "a smaller --model",
    "moments": "--optimiser adamw8bit",
    "activations": "a lower --micro-tokens, or --recompute",
    "vocabulary": "a lower --micro-tokens",
    "engine": "a lower --slots or --context",
}


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes by part, and what they were estimated for."""

    parts: Mapping[str, int]
    tokens: int  # of the largest micro-batch
    slots: int
    length: int

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    def line(self, free: int | None) -> str:
        """The plan in one line."""
        more = {"activations": f" ({self.tokens:,} tokens)", "engine": f" ({self.slots} x {self.length:,} tokens)"}
        parts = ", ".join(f"{name} {size_of(n)}{more.get(name, '')}" for name, n in self.parts.items() if n >= MEGA)
        return f"about {size_of(self.total)}{'' if free is None else f' of {size_of(free)} free'}: {parts}"

    def check(self, free: int | None, options: str = "") -> None:
        """Raises BadValue naming the largest part and the option that lowers it, where the plan does not fit.

        options  those already in use, which are not proposed again
        """
        if free is None or self.total <= free:
            return
        worst = max(self.parts, key=lambda n: self.parts[n])
        done = {"moments": "--optimiser adamw8bit", "activations": "--recompute"}.get(worst)
        remedy = REMEDIES[worst]
        if done and done in options:
            remedy = "a lower --micro-tokens" if worst == "activations" else "a smaller --model"
        raise BadValue(
            f"memory: this run needs about {size_of(self.total)} and {size_of(free)} are free; "
            f"most is for {worst} ({size_of(self.parts[worst])}): take {remedy}"
        )


def size_of(n: int) -> str:
    """1536 MB -> 1.5 GB; to two figures or so."""
    return f"{n / (1 << 30):.1f} GB" if n >= 1 << 30 else f"{n / MEGA:.0f} MB"


def parameter_counts(c: Config) -> tuple[int, int]:
    """(all, those of the linear layers) of a model of this shape; biases are left out of the account."""
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    linear = c.layers * (c.width * (2 * q + 2 * kv) + 3 * c.width * c.hidden)
    norms = c.width * (1 + c.layers * (4 if c.sandwich else 2)) + (2 * c.layers * c.head_dim if c.qk_norm else 0)
    return linear + norms + c.vocab * c.width * (1 if c.tied else 2), linear


def activation_bytes(c: Config, tokens: int, bf16: bool, recompute: bool, divided: int = 1) -> int:
    """Bytes that a forward over `tokens` keeps for the backward, and what the backward needs beside them.

    A token keeps in each layer, with D the width, Q and K the widths of queries and keys, F the MLP's, s = 2 in bf16
    and else 4 bytes: the residual before both norms (8 D), what the norms gave (2 s D), q, k, v and the attention's
    output (s (2 Q + 2 K)), log-sums (4 per head), gate, up and their product (3 s F). Recomputed, it keeps the layer's
    input alone (4 D), and all the rest for one layer. Before and after the layers there are three more residuals (12
    D). The backward holds the gradients of all that in one layer: s (2 D + 2 Q + 2 K + 3 F) + 8 D. Of Q, K and F a
    process has its part where each layer is divided over several.
    """
    s, q, k = 2 if bf16 else 4, c.heads * c.head_dim, c.kv_heads * c.head_dim
    layer = 8 * c.width + s * (2 * c.width + (2 * q + 2 * k + 3 * c.hidden) // divided)
    kept = c.layers * 4 * c.width + layer if recompute else c.layers * (layer + 4 * c.heads)
    return tokens * (kept + layer + 12 * c.width)


def logits_bytes(c: Config, tokens: int, bf16: bool = False) -> int:
    """Bytes for logits: those kept for the backward, a chunk that is worked on twice, and the gradient of the head's
    weights.

    In bf16 the larger of that and of what a kernel of our own keeps: 2 bytes each of all up to a bound, a chunk, and
    the head packed both ways.
    """
    every = tokens * c.vocab
    wide = 4 * ((every if every <= MAX_KEPT_LOGITS else 0) + 2 * max(CHUNK_LOGITS, ROW_MULTIPLE * c.vocab))
    short = 2 * (
        min(every, matmul_bf16.MAX_KEPT)
        + max(matmul_bf16.CHUNK_ELEMENTS, matmul_bf16.MIN_ROWS * c.vocab)
        + 2 * c.vocab * c.width
    )
    return 4 * c.vocab * c.width + (max(wide, short) if bf16 else wide)


def cache_bytes_per_token(c: Config, itemsize: int) -> int:
    """Bytes of the engine's keys and values of one token, in numbers of `itemsize` bytes."""
    return 2 * c.layers * c.kv_heads * c.head_dim * itemsize


def plan_memory(
    c: Config,
    models: Collection[str],
    trained: Collection[Collection[str]],
    sampled: Collection[str],
    *,
    tokens: int,
    slots: int,
    length: int,
    bf16: bool = False,
    recompute: bool = False,
    moments_8bit: bool = False,
    start: bool = True,
    rank: int = 0,
    gpu: bool = False,
    engine_bytes: int = 4,
    engine_weight_bytes: int = 4,
    ranks: int = 1,
    here: int = 1,
    tensor_parallel: int = 1,
) -> MemoryPlan:
    """The memory plan of a run.

    models     weight groups that hold a model of shape `c`, each once;  trained: those of each update, by update
    sampled    groups of which the engine holds a copy, each with a cache of `slots` sequences of `length` tokens
    bf16       matmuls in bf16: on a processor the linear layers packed both ways in 2 bytes each, on a GPU a copy of
               them in 2 bytes until a step's end, and of a base in place of its own 4 bytes
    gpu        the learner's device is one;  moments_8bit: moments in a byte, one scale per 256
    start      the model that the run began from is held beside the groups
    rank       of adapters on every linear layer, over one base that is the start itself; 0: none, all weights are
               trained
    engine_bytes, engine_weight_bytes
               of a number in the engine's cache, and of all its copies of a weight
    ranks, here
               processes over which weights, gradients and moments are sharded, and how many of them are in this memory;
               each holds its own activations and gathers embedding, head and two layers, and on a processor the run's
               holds the start besides. A base is sharded once for each group that is made of it
    tensor_parallel
               ranks over which each layer is divided; they share its tokens, and each has all that is outside of the
               layers' matrices in its shard
    """
    every, linear = parameter_counts(c)
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    adapter_width = c.layers * (
        4 * c.width + 2 * q + 2 * kv + 3 * (c.width + c.hidden)
    )  # in and out of each linear layer, added up
    size, held = (rank * adapter_width, 1) if rank else (every, len(models) + start)
    trainable = [len(set(groups) & set(models)) * size for groups in {tuple(sorted(g)) for g in trained}]
    tokens = max(tokens, min(length, c.max_length))
    cache = slots * math.ceil(length / PAGE) * PAGE * cache_bytes_per_token(c, engine_bytes)
    short = (linear * ((-2 if rank else 2 * len(models)) if gpu else 4 * (1 if rank else len(models)))) if bf16 else 0
    if ranks > 1:
        outside, layers = every - linear, 2 * linear // c.layers // tensor_parallel
        gathered = 4 * (outside + layers) * 2  # weights, and their gradients before they are scattered
        again = (tensor_parallel - 1) * outside  # of a model's numbers, so many are there once more
        trainable = [n if rank else n + n // every * again for n in trainable]
        sharded = 4 * (len(models) + start) * (every + again) + rank * adapter_width * 4 * len(models)
        parts = {
            "weights": sharded * here // ranks + gathered * here + (0 if gpu else 4 * every),
            "gradients": 4 * max(trainable, default=0) * here // ranks,
            "moments": sum(8 * n for n in trainable) * here // ranks,
            "activations": activation_bytes(c, tokens, bf16, recompute, tensor_parallel) * here,
            "vocabulary": logits_bytes(c, tokens, bf16) * here,
            "engine": len(sampled) * (every * engine_weight_bytes + cache),
        }
        return MemoryPlan(parts, tokens, slots, length)
    parts = {
        "weights": held * every * 4 + rank * adapter_width * 4 * len(models) + short,
        "gradients": 4 * max(trainable, default=0),
        "moments": sum((2 * n + 8 * n // 256) if moments_8bit else 8 * n for n in trainable),
        "activations": activation_bytes(c, tokens, bf16, recompute),
        "vocabulary": logits_bytes(c, tokens, bf16),
        "engine": len(sampled) * (every * engine_weight_bytes + cache),
    }
    return MemoryPlan(parts, tokens, slots, length)


def groups_of(method: Method) -> tuple[set[str], list[tuple[str, ...]], set[str]]:
    """(groups with a trunk, groups that each update trains, groups that are sampled) of a method as
    `method_on_task.needed` gives it.
    """
    trunks = {name for name, w in method.weights.items() if w.source != "new:head"}
    trained = [u.params for stage in method.stages for u in stage.updates]
    sampled = {method.models[name].weights[0] for name in engine_model_roles(method)}
    return trunks, trained, sampled
