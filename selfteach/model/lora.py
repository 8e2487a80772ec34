"""LoRA (Hu et al. 2021, section 4.1): a frozen W moves by the product of two thin matrices, kept apart from it; peft's conventions and files.

    y = W x + b + s B A drop(x)        A [r, in] uniform in +-1/sqrt(in), B [out, r] zero, s = alpha / r

Rank-stabilised (Kalajdzievski 2023, theorem 3.2): s = alpha / sqrt(r). B = 0 adds an exact 0, so an adapter that has not moved is its base bit
for bit. Any number of adapted models share one base. `merged` gives W + s B A, which is what an engine decodes with and what is exported:
one product per projection instead of three, no second code path in the engine, and a rounding no larger than that of a fully trained
weight. The learner keeps the factors apart, so nothing is lost where the sum is then rounded to a smaller type.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import address
from ..core.errors import BadCheckpoint, BadValue, nearest
from . import files
from .base import Model
from .transformer import Attend, Transformer

ALL = "all-linear"
PREFIX = "base_model.model."  # before a tensor's name in peft's files
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Lora:
    """A kind of adapter. Raises BadValue for numbers that cannot be.

    rank        r;  alpha: None is 2 r;  stabilised: s = alpha / sqrt(r)
    targets     names of linear layers, whole or from a dot on (q_proj, 0.mlp.up_proj), or all-linear
    dropout     the share of what enters A that is left out in learning, where a policy that has moved is then not quite the one that sampled
    """

    rank: int
    alpha: float | None = None
    targets: tuple[str, ...] = (ALL,)
    dropout: float = 0.0
    stabilised: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise BadValue(f"lora_rank: must be at least 1, not {self.rank}; leave it out (none) to train all weights")
        if self.alpha is not None and not (0 < self.alpha < math.inf):
            raise BadValue(f"lora_alpha: must be a number above 0, not {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise BadValue(f"lora_dropout: must be at least 0 and below 1, not {self.dropout}")
        if not self.targets:
            raise BadValue(f"lora_targets: names no layer; say {ALL}, or some of a model's linear layers")

    @property
    def strength(self) -> float:
        """alpha, said or not."""
        return 2.0 * self.rank if self.alpha is None else self.alpha

    @property
    def scale(self) -> float:
        """s of B A."""
        return self.strength / (self.rank**0.5 if self.stabilised else self.rank)


@dataclass(frozen=True)
class Adapter:
    """What a run's adapters begin as: their kind, and tensors where they go on from others (none: fresh ones)."""

    lora: Lora
    tensors: Mapping[str, Tensor]


class Noise:
    """What dropout is drawn from in a layer under way: a number per token; None: nothing is dropped. One for all layers of a model.

    A forward is known by the attention handed to it, so that a layer computed anew on the way back drops what it dropped on the way there.
    """

    def __init__(self) -> None:
        self.drawn: WeakKeyDictionary[Any, Tensor] = WeakKeyDictionary()
        self.now: Tensor | None = None

    def enter(self, _: nn.Module, given: tuple[Any, ...]) -> None:
        """Called before each layer with what it is given."""
        attend = next((x for x in given if callable(x)), None)
        self.now = None if attend is None else self.drawn.get(attend)


class Adapted(nn.Module):
    """A linear layer whose own weight stands still, and its adapter. The factors are f32 at least, whatever the weight is."""

    def __init__(self, base: nn.Linear, name: str, lora: Lora, noise: Noise, seed: int):
        super().__init__()
        self.weight, self.bias = base.weight, base.bias
        self.lora, self.noise, self.address = lora, noise, address.key("lora", name)
        self.product = type(base).forward  # of the base's kind, which reads weight and bias
        kind, (out, width) = torch.promote_types(base.weight.dtype, torch.float32), base.weight.shape
        bound = width**-0.5
        first = address.generator(seed, "lora", name).uniform(-bound, bound, (lora.rank, width))
        self.lora_A = nn.Parameter(torch.from_numpy(first).to(base.weight.device, kind))
        self.lora_B = nn.Parameter(torch.zeros(out, lora.rank, dtype=kind, device=base.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]; under noise, x has a row for each of its numbers."""
        y, thin = self.product(self, x), x  # type: ignore[arg-type]
        if self.noise.now is not None:
            keep, share = kept(self.noise.now, self.address, x.shape[-1], self.lora.dropout)
            thin = x * keep.view(x.shape) / share
        more = F.linear(F.linear(thin.to(torch.promote_types(thin.dtype, self.lora_A.dtype)), self.lora_A), self.lora_B)
        return y + (more * self.lora.scale).to(y.dtype)

    @torch.no_grad()
    def merged(self) -> Tensor:
        """W + s B A, summed in the factors' type and rounded once to the weight's."""
        product = self.lora_B @ self.lora_A
        return product.mul_(self.lora.scale).add_(self.weight.detach()).to(self.weight.dtype)


# ---- adapted models


def linears(model: Model) -> dict[str, nn.Linear]:
    """The linear layers that can be adapted, by name: the projections of every layer; embedding and head stand still."""
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and n.startswith("model.layers.")}


def targeted(lora: Lora, model: Model) -> list[str]:
    """The names of the linear layers that an adapter is for. Raises BadValue for a target that the model does not have."""
    have = linears(model)
    out: set[str] = set()
    for target in lora.targets:
        mine = {n for n in have if target == ALL or n == target or n.endswith("." + target)}
        if not mine:
            leaves = [*dict.fromkeys(n.rpartition(".")[2] for n in have), ALL]
            raise BadValue(f"lora_targets: no linear layer is called {target!r}; {nearest(target, leaves)} (there are: {', '.join(leaves)})")
        out |= mine
    return [n for n in have if n in out]


def adapt(base: Model, lora: Lora, seed: int = 0, given: Mapping[str, Tensor] | None = None) -> Model:
    """The base with adapters, beginning at `given` or fresh. All but these is the base's own memory. Raises BadValue as `targeted` does.

    Fresh factors are a function of seed and layer alone: two models adapted alike begin alike, as two copies of a start would.
    """
    names, noise = targeted(lora, base), Noise()
    lora = replace(lora, targets=_short(names, base))
    model = copy.deepcopy(base, {id(t): t for t in (*base.parameters(), *base.buffers())})
    for name in names:
        where, _, leaf = name.rpartition(".")
        layer = base.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        setattr(model.get_submodule(where), leaf, Adapted(layer, name, lora, noise, seed))
    for layer in _ours(model).model.layers:
        layer.register_forward_pre_hook(noise.enter)
    if given:
        files.fill(factors(model), given, "adapter")
    return model


def _ours(model: Model) -> Transformer:
    if not isinstance(model, Transformer):
        raise BadValue("adapters are for models of selfteach's own families; this one runs through transformers: train all its weights")
    return model


def _short(names: Sequence[str], base: Model) -> tuple[str, ...]:
    """Targets that say the same: q_proj and so on where every layer's is meant, whole names where not."""
    leaves = tuple(dict.fromkeys(n.rpartition(".")[2] for n in names))
    every = [n for n in linears(base) if n.rpartition(".")[2] in leaves]
    return leaves if every == list(names) else tuple(names)


def layers(model: nn.Module) -> dict[str, Adapted]:
    """The adapted layers of a model by name; empty for one without adapters."""
    return {n: m for n, m in model.named_modules() if isinstance(m, Adapted)}


def factors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's adapters: what is trained, kept in checkpoints and saved; empty for one without."""
    return {f"{n}.{k}": getattr(m, k) for n, m in layers(model).items() for k in ("lora_A", "lora_B")}


class Merged(Mapping[str, Tensor]):
    """A model's tensors with its adapters merged in, under the base's names, and others besides; each is made when asked for, so that
    they never all exist at once."""

    def __init__(self, model: Model, more: Mapping[str, Tensor] | None = None):
        own = {n: p for n, p in model.names().items() if n.rpartition(".")[2] not in ("lora_A", "lora_B")}
        self.own = {n: p.detach() for n, p in {**own, **(more or {})}.items()}
        self.adapted = {f"{n}.weight": m for n, m in layers(model).items()}

    def __getitem__(self, name: str) -> Tensor:
        return self.adapted[name].merged() if name in self.adapted else self.own[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.own)

    def __len__(self) -> int:
        return len(self.own)


def plain(model: Model) -> Model:
    """A copy in memory of its own, adapters merged in."""
    whole = Transformer.bare(model.c).hold((n, t if n in found.adapted else t.clone()) for found in [Merged(model)] for n, t in found.items())
    return whole.to(model.lm_head.weight.device)  # the tables of rotary positions


# ---- dropout


GOLDEN, M1, M2 = (int(np.uint64(x).astype(np.int64)) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def mix(x: Tensor) -> Tensor:
    """core.address.mix on a device: i64[...], bits as there."""
    x = (x ^ ((x >> 30) & (1 << 34) - 1)) * M1
    x = (x ^ ((x >> 27) & (1 << 37) - 1)) * M2
    return x ^ ((x >> 31) & (1 << 33) - 1)


def marks(pieces: Sequence[np.ndarray], offset: np.ndarray, after: np.ndarray) -> np.ndarray:
    """u64[F]: for each token of texts laid end to end, a number that the text up to and with it determines, however texts are laid out.

    `offset` is the position of each piece's first token; `after` where the token before it stands in the flat ones (-1: it begins a text).
    Sums of hashed (position, token), so that a branch goes on from the number its context ended with.
    """
    length = np.array([len(p) for p in pieces])
    begin = np.cumsum(length) - length
    piece = np.repeat(np.arange(len(pieces)), length)
    place = np.arange(len(piece)) - begin[piece] + offset[piece]
    with np.errstate(over="ignore"):
        total = np.cumsum(address.mix(np.concatenate(pieces).astype(np.uint64) << np.uint64(32) | place.astype(np.uint64)), dtype=np.uint64)
        before = np.where(begin > 0, total[begin - 1], np.uint64(0))
        out = total - before[piece]
        return out + np.where(after >= 0, out[np.maximum(after, 0)], np.uint64(0))[piece]


def kept(marks: Tensor, layer: int, width: int, dropout: float) -> tuple[Tensor, float]:
    """(bool[F, width] what dropout leaves, the share that it leaves), a function of each token's mark (i64[F]) and the layer.

    Four draws of 16 bits per hash: the share is exact to 2^-16, and it is the true one that is divided by.
    """
    bound = round(dropout * 2**16)
    column = torch.arange(-(-width // 4), device=marks.device) * GOLDEN + int(np.uint64(layer).astype(np.int64))
    draws = mix(marks[:, None] + column).view(torch.int16)[:, :width]
    return draws >= bound - 2**15, 1 - bound / 2**16


def drop(model: Model, attend: Attend, marks: Tensor, *words: object) -> None:
    """Let the forward of `model` that is handed this very `attend`, over the tokens of `marks` (i64[F]), have dropout, drawn at `words`."""
    noise = next(iter(layers(model).values())).noise
    noise.drawn[attend] = mix(marks + int(np.uint64(address.key(*words)).astype(np.int64)))


# ---- files


def save(folder: Path, model: Model, base: str) -> None:
    """Write adapter_config.json and adapter_model.safetensors, which `peft.PeftModel.from_pretrained(base model, folder)` reads."""
    found = layers(model)
    lora = next(iter(found.values())).lora
    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(lora.strength) if lora.strength == int(lora.strength) else lora.strength,
        "target_modules": list(lora.targets),
        "lora_dropout": lora.dropout,
        "use_rslora": lora.stabilised,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
    }
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(said, indent=2) + "\n")
    files.write_tensors(folder / WEIGHTS, {f"{PREFIX}{n}.weight": t for n, t in factors(model).items()})


def read_factors(folder: Path) -> dict[str, Tensor]:
    """The factors in a folder by their names here. Raises BadCheckpoint for a tensor that is none."""
    file, out = folder / WEIGHTS, {}
    for name, tensor in files.read_tensors(file).items():
        own = name.removeprefix(PREFIX).removesuffix(".weight")
        if not name.startswith(PREFIX) or not own.endswith((".lora_A", ".lora_B")):
            raise BadCheckpoint(f"{file}: tensor {name} is no factor of an adapter; only plain LoRA on linear layers can be read")
        out[own] = tensor
    return out


# Keys of an adapter_config.json that say nothing of what the adapter computes, once its tensors are there.
NEUTRAL_KEYS = """
peft_type task_type base_model_name_or_path revision auto_mapping inference_mode r lora_alpha target_modules exclude_modules lora_dropout use_rslora
init_lora_weights layers_to_transform layers_pattern peft_version megatron_core ensure_weight_tying qalora_group_size
"""
NEUTRAL = set(NEUTRAL_KEYS.split())


def read(folder: Path, base: Model, dropout: float | None = None) -> Adapter:
    """An adapter in peft's layout, for a base; `dropout` None: as its file says. Raises BadCheckpoint naming the file, and the key or tensor that
    is not understood or does not fit the base."""
    file = folder / CONFIG
    try:
        said = json.loads(file.read_text())
        rank, alpha = int(said["r"]), float(said["lora_alpha"])
    except FileNotFoundError:
        raise BadCheckpoint(f"{file}: missing; an adapter is a folder with {CONFIG} and {WEIGHTS}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadCheckpoint(f"{file}: not an adapter's configuration ({type(error).__name__}: {error})") from None
    strange = [k for k, v in said.items() if v and k not in NEUTRAL and (k, v) != ("bias", "none")]
    strange += ["peft_type"] * (said.get("peft_type") != "LORA")
    # Other beginnings than these change the base too.
    strange += ["init_lora_weights"] * (said.get("init_lora_weights", True) not in (True, False, None, "gaussian", "orthogonal"))
    if strange:
        raise BadCheckpoint(f"{file}: {strange[0]} ({str(said.get(strange[0]))[:60]}) is not understood; only plain LoRA can be read")
    tensors = read_factors(folder)
    names = {n.rpartition(".")[0] for n in tensors}
    have = linears(base)
    if foreign := sorted(names - have.keys()):
        raise BadCheckpoint(f"{folder / WEIGHTS}: tensor {PREFIX}{foreign[0]}.lora_A.weight belongs to a layer that the base does not have")
    for name in sorted(names):
        out, width = have[name].weight.shape
        for leaf, shape in (("lora_A", (rank, width)), ("lora_B", (out, rank))):
            got = tuple(tensors[f"{name}.{leaf}"].shape) if f"{name}.{leaf}" in tensors else None
            if got != shape:
                said_shape = "is missing" if got is None else f"has shape {got}"
                raise BadCheckpoint(f"{folder / WEIGHTS}: tensor {PREFIX}{name}.{leaf}.weight {said_shape}, the base and rank {rank} need {shape}")
    if not names:
        raise BadCheckpoint(f"{folder / WEIGHTS}: holds no adapter")
    targets = _short([n for n in have if n in names], base)
    share = float(said.get("lora_dropout") or 0.0) if dropout is None else dropout
    return Adapter(Lora(rank, alpha, targets, share, bool(said.get("use_rslora"))), tensors)


def same_base(file: Path, base: Model, root: str = "start") -> None:
    """Raises BadCheckpoint where a checkpoint's learner.json says that its adapters are over other weights than these."""
    try:
        over = json.loads(file.read_text())["bases"].get(root)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(f"{file}: does not say what its adapters are over ({type(error).__name__}: {error})") from None
    if over != files.fingerprint(base.names()):
        raise BadCheckpoint(f"{file}: its adapters are over other weights than {root} has now; give the model that the run began with")
