"""LoRA (Hu et al. 2021, section 4.1): low-rank adapters of frozen linear layers, in peft's conventions.

    y = W x + b + s B A drop(x)        A [r, in] uniform in +-1/sqrt(in), B [out, r] zero, s = alpha / r

Rank-stabilised (Kalajdzievski 2023, theorem 3.2): s = alpha / sqrt(r). B = 0 adds an exact 0, so a new adapter is its
base bit for bit. Any number of adapted models share one base. `merged` gives W + s B A, with which engines decode and
which is exported: one matmul per projection instead of three, no second code path in the engine, and a rounding no
larger than that of a fully trained weight. The learner keeps the factors apart, so nothing is lost where the sum is
rounded to a smaller type.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import random_keys
from ..core.errors import BadValue, nearest
from . import files
from .attention import AttentionFn
from .base import Model
from .transformer import Transformer

ALL = "all-linear"


@dataclass(frozen=True)
class LoraConfig:
    """Hyper-parameters of an adapter. Raises BadValue for values out of range.

    rank        r
    alpha       None: 2 r
    use_rslora  s = alpha / sqrt(r), not alpha / r
    targets     names of linear layers, whole or from a dot on (q_proj, 0.mlp.up_proj), or all-linear
    dropout     dropout of A's inputs in learning; the policy is then not exactly the one that sampled
    """

    rank: int
    alpha: float | None = None
    targets: tuple[str, ...] = (ALL,)
    dropout: float = 0.0
    use_rslora: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise BadValue(f"lora_rank: must be at least 1, not {self.rank}; leave it out (none) to train all weights")
        if self.alpha is not None and not (0 < self.alpha < math.inf):
            raise BadValue(f"lora_alpha: must be a number above 0, not {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise BadValue(f"lora_dropout: must be at least 0 and below 1, not {self.dropout}")
        if not self.targets:
            raise BadValue(f"lora_targets: names no layer; use {ALL}, or some of a model's linear layers")

    @property
    def effective_alpha(self) -> float:
        """The value of alpha, by default 2 r."""
        return 2.0 * self.rank if self.alpha is None else self.alpha

    @property
    def scale(self) -> float:
        """The factor s of B A."""
        return self.effective_alpha / (self.rank**0.5 if self.use_rslora else self.rank)


@dataclass(frozen=True)
class Adapter:
    """What a run's adapters start from: hyper-parameters, and tensors to continue from (none: fresh ones)."""

    lora: LoraConfig
    tensors: Mapping[str, Tensor]


class DropoutSeeds:
    """The dropout seeds of the current forward, one per token, for all layers of a model; None: no dropout.

    A forward is identified by its attention function, so that a layer recomputed in the backward (gradient
    checkpointing) drops the same inputs.
    """

    def __init__(self) -> None:
        self.drawn: WeakKeyDictionary[Any, Tensor] = WeakKeyDictionary()
        self.now: Tensor | None = None

    def enter(self, _: nn.Module, given: tuple[Any, ...]) -> None:
        """Look up the seeds of a forward; called before each layer with its arguments."""
        attend = next((x for x in given if callable(x)), None)
        self.now = None if attend is None else self.drawn.get(attend)


class LoraLinear(nn.Module):
    """A linear layer with a frozen weight, and its adapter, whose factors are float32 at least."""

    def __init__(self, base: nn.Linear, name: str, lora: LoraConfig, dropout_seeds: DropoutSeeds, seed: int) -> None:
        super().__init__()
        self.weight, self.bias = base.weight, base.bias
        self.lora, self.dropout_seeds, self.rng_key = lora, dropout_seeds, random_keys.key("lora", name)
        self.base_forward = type(base).forward  # reads weight and bias of this module
        kind, (out, width) = torch.promote_types(base.weight.dtype, torch.float32), base.weight.shape
        bound = width**-0.5
        first = random_keys.generator(seed, "lora", name).uniform(-bound, bound, (lora.rank, width))
        self.lora_A = nn.Parameter(torch.from_numpy(first).to(base.weight.device, kind))
        self.lora_B = nn.Parameter(torch.zeros(out, lora.rank, dtype=kind, device=base.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [..., out] of x [..., in]; with dropout, x has a row for each seed."""
        y, thin = self.base_forward(self, x), x  # type: ignore[arg-type]
        if self.dropout_seeds.now is not None:
            keep, share = dropout_mask(self.dropout_seeds.now, self.rng_key, x.shape[-1], self.lora.dropout)
            thin = x * keep.view(x.shape) / share
        more = F.linear(F.linear(thin.to(torch.promote_types(thin.dtype, self.lora_A.dtype)), self.lora_A), self.lora_B)
        return y + (more * self.lora.scale).to(y.dtype)

    @torch.no_grad()
    def merged(self) -> Tensor:
        """W + s B A, summed in the factors' type and rounded once to the weight's."""
        product = self.lora_B @ self.lora_A
        return product.mul_(self.lora.scale).add_(self.weight.detach()).to(self.weight.dtype)


# ---- adapted models


def adaptable_linears(model: Model) -> dict[str, nn.Linear]:
    """The linear layers that can be adapted, by name: all projections, not embedding and head."""
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and n.startswith("model.layers.")}


def target_layers(lora: LoraConfig, model: Model) -> list[str]:
    """The names of the linear layers that `lora.targets` selects.

    Raises BadValue for a target that the model does not have.
    """
    have = adaptable_linears(model)
    out: set[str] = set()
    for target in lora.targets:
        mine = {n for n in have if target == ALL or n == target or n.endswith("." + target)}
        if not mine:
            leaves = [*dict.fromkeys(n.rpartition(".")[2] for n in have), ALL]
            raise BadValue(
                f"lora_targets: no linear layer is called {target!r}; {nearest(target, leaves)} (there are: "
                f"{', '.join(leaves)})"
            )
        out |= mine
    return [n for n in have if n in out]


def adapt(base: Model, lora: LoraConfig, seed: int = 0, given: Mapping[str, Tensor] | None = None) -> Model:
    """The base with adapters, from `given` or fresh; everything else shares the base's memory.

    Fresh factors are a function of seed and layer alone, so that two models adapted alike start alike. Raises BadValue
    as `target_layers` does.
    """
    names, dropout_seeds = target_layers(lora, base), DropoutSeeds()
    lora = replace(lora, targets=short_targets(names, base))
    model = copy.deepcopy(base, {id(t): t for t in (*base.parameters(), *base.buffers())})
    for name in names:
        where, _, leaf = name.rpartition(".")
        layer = base.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        setattr(model.get_submodule(where), leaf, LoraLinear(layer, name, lora, dropout_seeds, seed))
    for layer in _ours(model).model.layers:
        layer.register_forward_pre_hook(dropout_seeds.enter)
    if given:
        files.copy_tensors(factors(model), given, "adapter")
    return model


def _ours(model: Model) -> Transformer:
    if not isinstance(model, Transformer):
        raise BadValue(
            "adapter: only models of selfteach's own families can have one, and this one runs through transformers; "
            "train all its weights"
        )
    return model


def short_targets(names: Sequence[str], base: Model) -> tuple[str, ...]:
    """Equivalent targets: leaf names (q_proj) where they select every such layer, else whole names."""
    leaves = tuple(dict.fromkeys(n.rpartition(".")[2] for n in names))
    every = [n for n in adaptable_linears(base) if n.rpartition(".")[2] in leaves]
    return leaves if every == list(names) else tuple(names)


@torch.no_grad()
def halve(base: Model) -> None:
    """Keep the linear layers of a frozen base in bf16, half the memory.

    Under autocast to bf16 outputs are the same bits: it rounds these weights to bf16 for each product. A merged weight
    is rounded to bf16 too, which is exact where the base was stored in bf16 and nothing was added.
    """
    for layer in adaptable_linears(base).values():
        layer.weight.data = layer.weight.data.to(torch.bfloat16)


def lora_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """The adapted layers of a model by name; empty for one without adapters."""
    return {n: m for n, m in model.named_modules() if isinstance(m, LoraLinear)}


def factors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's adapters: what is trained, kept in checkpoints and saved; empty for one without."""
    return {f"{n}.{k}": getattr(m, k) for n, m in lora_layers(model).items() for k in ("lora_A", "lora_B")}


class MergedTensors(Mapping[str, Tensor]):
    """A model's tensors with its adapters merged in, under the base's names, and `more`.

    Each is computed on access, so that they never all exist at once.
    """

    def __init__(self, model: Model, more: Mapping[str, Tensor] | None = None) -> None:
        self.model = model
        self.own = {n: p.detach() for n, p in {**base_tensors(model), **(more or {})}.items()}
        self.adapted = {f"{n}.weight": m for n, m in lora_layers(model).items()}

    def __getitem__(self, name: str) -> Tensor:
        return self.adapted[name].merged() if name in self.adapted else self.own[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)


def base_tensors(model: Model) -> dict[str, Tensor]:
    """The tensors of a model without those of its adapters."""
    return {n: p for n, p in model.named_tensors().items() if n.rpartition(".")[2] not in ("lora_A", "lora_B")}


def base_copy(model: Model) -> Model:
    """A copy of a model in memory of its own, without its adapters."""
    tensors = base_tensors(model)
    whole = Transformer.without_weights(model.config).assign((n, t.detach().clone()) for n, t in tensors.items())
    return whole.to(model.lm_head.weight.device)  # for the rotary tables


def merged_copy(model: Model) -> Model:
    """A copy of a model in memory of its own, with its adapters merged in."""
    tensors = MergedTensors(model)
    whole = Transformer.without_weights(model.config).assign(
        (n, t if n in tensors.adapted else t.clone()) for n, t in tensors.items()
    )
    return whole.to(model.lm_head.weight.device)  # for the rotary tables


# ---- dropout


GOLDEN, M1, M2 = (
    int(np.uint64(x).astype(np.int64)) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def mix(x: Tensor) -> Tensor:
    """The hash `core.random_keys.mix` on a device, bit for bit: i64[...] -> i64[...]."""
    x = (x ^ ((x >> 30) & (1 << 34) - 1)) * M1
    x = (x ^ ((x >> 27) & (1 << 37) - 1)) * M2
    return x ^ ((x >> 31) & (1 << 33) - 1)


def token_hashes(pieces: Sequence[np.ndarray], offset: np.ndarray, after: np.ndarray) -> np.ndarray:
    """u64[F]: for each token of concatenated pieces, a hash of its text up to and with it, whatever the layout.

    offset  the position in its text of each piece's first token
    after   the index, in the concatenation, of the token before each piece; -1: it begins a text

    Hashes are sums of hashed (position, token), so that a branch continues from the hash at the end of its context.
    """
    length = np.array([len(p) for p in pieces])
    begin = np.cumsum(length) - length
    piece = np.repeat(np.arange(len(pieces)), length)
    place = np.arange(len(piece)) - begin[piece] + offset[piece]
    with np.errstate(over="ignore"):
        total = np.cumsum(
            random_keys.mix(np.concatenate(pieces).astype(np.uint64) << np.uint64(32) | place.astype(np.uint64)),
            dtype=np.uint64,
        )
        before = np.where(begin > 0, total[begin - 1], np.uint64(0))
        out = total - before[piece]
        return out + np.where(after >= 0, out[np.maximum(after, 0)], np.uint64(0))[piece]


def dropout_mask(marks: Tensor, layer: int, width: int, dropout: float) -> tuple[Tensor, float]:
    """(bool[F, width], True where an input is kept; the share kept), a function of token hash and layer.

    marks  i64[F], a hash per token

    Four draws of 16 bits per hash: the share is within 2^-16 of 1 - dropout, and its true value is what one divides by.
    """
    bound = round(dropout * 2**16)
    column = torch.arange(-(-width // 4), device=marks.device) * GOLDEN + int(np.uint64(layer).astype(np.int64))
    draws = mix(marks[:, None] + column).view(torch.int16)[:, :width]
    return draws >= bound - 2**15, 1 - bound / 2**16


def enable_dropout(model: Model, attend: AttentionFn, marks: Tensor, *words: object) -> None:
    """Give dropout to the forward of `model` with this `attend` object, over tokens with hashes `marks` (i64[F]).

    words  the RNG key of the draw
    """
    dropout_seeds = next(iter(lora_layers(model).values())).dropout_seeds
    dropout_seeds.drawn[attend] = mix(marks + int(np.uint64(random_keys.key(*words)).astype(np.int64)))
