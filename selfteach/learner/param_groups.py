"""Parameter groups by name, their scalar heads, and the models made of them.

A group is built on first use.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from ..core.errors import BadCheckpoint, BadValue, unknown
from ..core.method import ModelRole, WeightSpec
from ..core.quantity import HEADS
from ..kernels.fast_paths import fast_paths
from ..model import files, lora
from ..model.attention import AttentionFn
from ..model.base import Model
from ..model.transformer import Transformer
from .settings import Precision

if TYPE_CHECKING:
    from .ranks import Ranks
    from .rounds import Round

HEAD_ONLY = "new:head"
M = TypeVar("M", bound=nn.Module)


@dataclass
class ParamGroup:
    """Parameters under one name: a trunk, scalar heads, or both.

    is_adapter_base: the trunk is the base of other groups' adapters, and is never trained.
    """

    trunk: Model | None
    heads: dict[str, nn.Linear] = field(default_factory=dict)
    is_adapter_base: bool = False

    def named_parameters(self) -> dict[str, Tensor]:
        """The trainable tensors by name.

        Those of the trunk under the Hub's names, or of its adapters alone; a head's as `value_head.weight` [1, width]
        and `value_head.bias` [1].
        """
        own = (
            {} if self.trunk is None or self.is_adapter_base else lora.factors(self.trunk) or self.trunk.named_tensors()
        )
        return {**own, **self._heads()}

    def named_tensors(self) -> dict[str, Tensor]:
        """All its tensors by name: of trunk, adapters and heads."""
        return {**({} if self.trunk is None else self.trunk.named_tensors()), **self._heads()}

    def merged_weights(self) -> Mapping[str, Tensor]:
        """All its weights under the Hub's names, adapters merged in."""
        if self.trunk is not None and lora.factors(self.trunk):
            return lora.MergedTensors(self.trunk, self._heads())
        own = {} if self.trunk is None else self.trunk.named_tensors()
        return {n: p.detach() for n, p in {**own, **self._heads()}.items()}

    def _heads(self) -> dict[str, Tensor]:
        return {f"{h}_head.{n}": p for h, head in self.heads.items() for n, p in head.named_parameters()}


@dataclass(frozen=True)
class ResolvedModel:
    """A resolved model: the group of its trunk, whether it has a vocabulary head, the group of each scalar head."""

    trunk: str
    vocab: bool
    heads: Mapping[str, str]


class ParamGroups:
    """All parameter groups of a run, and the models made of them; gradients are collected only inside `trainable`.

    models        model role -> ResolvedModel
    frozen        groups that nothing will write to; those of source "start" share the start's tensors
    donate_start  the start is not used elsewhere: its only group may take its tensors
    ranks         over which trunks are sharded; all groups are then built at once, on rank 0 of the start's tensors,
                  elsewhere of its shapes, and scalar heads are whole on every rank
    tensor_parallel  how many ranks share each layer's matrices

    With an `adapter`, groups of one origin are adapters over one base, which is the start itself (or a path's model,
    loaded once); a group in `frozen` is the base. Scalar heads are trained in full in any case.
    Raises BadValue for models that cannot be built of their groups.
    """

    def __init__(
        self,
        weights: Mapping[str, WeightSpec],
        models: Mapping[str, ModelRole],
        start: Model,
        device: str = "cpu",
        dtype: Precision = "float32",
        adapter: lora.Adapter | None = None,
        frozen: Collection[str] = (),
        seed: int = 0,
        donate_start: bool = False,
        recompute: bool = False,
        ranks: Ranks | None = None,
        tensor_parallel: int = 1,
    ) -> None:
        self.specs = dict(weights)
        self.ranks = ranks
        self.division = None if ranks is None else ranks.divided(tensor_parallel)
        self.round: Round | None = None  # the micro-batch that all ranks work on now
        self._shared: set[str] = set()  # groups whose trunk is the start's tensors
        self.donate_start = donate_start
        self.start = start
        self.device = device
        self.dtype = dtype
        self.adapter, self.frozen, self.seed = adapter, frozenset(frozen), seed
        self.recompute = recompute
        self.steps = 0  # of the optimisers: the RNG key of dropout
        self._trainable: tuple[str, ...] = ()  # groups being trained
        self._bases: dict[str, Transformer] = {}
        self.base_fingerprints: dict[str, str] = {}  # with ranks: of the base of adapters by origin
        self._built: dict[str, ParamGroup] = {}
        self.models = {name: self._resolve(name, model_role) for name, model_role in models.items()}
        if ranks is not None:
            from .sharding import skeleton

            for name in self.specs:
                self[name]
            self.start = skeleton(start)
            self._bases = {origin: skeleton(model) for origin, model in self._bases.items()}

    def __getitem__(self, name: str) -> ParamGroup:
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def __contains__(self, name: str) -> bool:
        return name in self.specs

    def writable(self, name: str) -> ParamGroup:
        """A group that is about to be written to: tensors it shares with the start are copied first."""
        group = self[name]
        if name in self._shared and group.trunk is not None:
            for p in group.trunk.parameters():
                p.data = p.data.clone()
            self._shared.discard(name)
        return group

    @property
    def shares_prefixes(self) -> bool:
        """Whether a prefix that several sequences share is computed once."""
        return self.start.supports_custom_attention

    def origin(self, name: str) -> str:
        """Where a group's first weights come from: start, new:head or a path; copies of groups are followed."""
        seen = [name]
        while (source := self._spec(seen[-1]).source) in self.specs:
            if source in seen:
                raise BadValue(f"weights {name}: its source is a circle: {' -> '.join([*seen, source])}")
            seen.append(source)
        if source.startswith("new:") and source != HEAD_ONLY:
            raise BadValue(
                f"weights {name}: source {source!r} is unknown; take one of: start, {HEAD_ONLY}, a path, another group"
            )
        return source

    def trunk(self, name: str) -> Model:
        """The trunk of a group that has one."""
        trunk = self[name].trunk
        assert trunk is not None, name
        return trunk

    @contextmanager
    def trainable(self, names: tuple[str, ...]) -> Generator[None]:
        """Make the parameters of these groups collect gradients inside the `with`; all others are constants."""
        params = [p for n in names for p in self.writable(n).named_parameters().values()]
        for p in params:
            p.requires_grad_(True)
        before, self._trainable = self._trainable, names
        try:
            yield
        finally:
            self._trainable = before
            for p in params:
                p.requires_grad_(False)

    def gathered_head(self, trunk: Model) -> AbstractContextManager[None]:
        """The head of a trunk inside the `with`, outside of a forward pass; only ranks have to gather it."""
        if self.ranks is None:
            return nullcontext()
        from .sharding import gathered_head

        return gathered_head(trunk)

    def fast_paths(self) -> AbstractContextManager[None]:
        """The kernels that a pass is computed by; where layers are cut over ranks torch's own, since kernels take whole
        matrices.
        """
        return nullcontext() if self.division is not None and self.division.tensor > 1 else fast_paths()

    def set_dropout(self, name: str, attend: AttentionFn, token_hashes: Tensor) -> None:
        """Set the dropout of a trunk's adapters for the forward pass with this `attend`, if they are being trained.

        Drawn by seed, optimiser step, layer and the hash of the text up to each token (i64[F]), so it depends neither
        on micro-batches nor on which pass it is.
        """
        if name in self._trainable and self.adapter is not None and self.adapter.lora.dropout:
            lora.enable_dropout(self.trunk(name), attend, token_hashes, self.seed, "dropout", self.steps)

    @torch.no_grad()
    def copy(self, target: str, source: str, rate: float) -> None:
        """Update a group towards another: target += rate * (source - target), on the parameters that both have.

        Of adapters the factors A and B are averaged, each by itself (the mean of products would have a higher rank);
        with rate 1, or with the base as the source, which is B = 0, that equals the update of merged weights.
        Raises BadValue where there is no common parameter, or shapes differ.
        """
        to, of = self.writable(target).named_parameters(), self[source].named_parameters()
        if (
            self[source].is_adapter_base
            and self[target].trunk is not None
            and self.origin(target) == self.origin(source)
        ):
            of = {
                n: torch.zeros_like(p) if n.endswith("lora_B") else p
                for n, p in to.items()
                if n.endswith(("lora_A", "lora_B"))
            } | of
        elif (
            self.adapter
            and self[target].trunk is not None
            and self[source].trunk is not None
            and self.origin(target) != self.origin(source)
        ):
            raise BadValue(
                f"weights {target}: adapters over {self.origin(target)}; {source}, over {self.origin(source)}, "
                "cannot be copied to it"
            )
        common = to.keys() & of.keys()
        if not common:
            raise BadValue(f"weights {target}: nothing in common with {source}, so it cannot be copied from it")
        for name in sorted(common):
            if to[name].shape != of[name].shape:
                raise BadValue(
                    f"weights {target}: {name} has shape {tuple(to[name].shape)}, in {source} {tuple(of[name].shape)}"
                )
            own, other = local(to[name]), local(of[name])
            if rate == 1.0:
                own.copy_(other)
            else:
                own.lerp_(other, rate)

    def _spec(self, name: str) -> WeightSpec:
        if name not in self.specs:
            raise unknown("weight group", name, self.specs)
        return self.specs[name]

    def _resolve(self, name: str, model_role: ModelRole) -> ResolvedModel:
        trunks = [w for w in model_role.weights if self.origin(w) != HEAD_ONLY]
        if len(trunks) != 1:
            raise BadValue(
                f"model {name}: it needs exactly one group with a trunk, not {len(trunks)} "
                f"({', '.join(trunks) or 'none'})"
            )
        for head in model_role.heads:
            if head != "vocab" and head not in HEADS:
                raise unknown("head", head, ("vocab", *HEADS))
        heads = {h: model_role.weights[-1] for h in model_role.heads if h != "vocab"}
        return ResolvedModel(trunks[0], "vocab" in model_role.heads, heads)

    def _build(self, name: str) -> ParamGroup:
        origin = self.origin(name)
        if origin == HEAD_ONLY:
            group = ParamGroup(None)
        else:
            group = self._trunk(name, origin) if self.ranks is None else self._sharded_trunk(name, origin, self.ranks)
        trunk = group.trunk
        if trunk is not None:
            trunk.recompute = self.recompute
        for model in self.models.values():
            for head, home in model.heads.items():
                if home == name and head not in group.heads:
                    width = (
                        trunk if model.trunk == name and trunk is not None else self.trunk(model.trunk)
                    ).config.width
                    group.heads[head] = _zero_head(width, _dtype(self.start))
        for module in (group.trunk if self.ranks is None else None, *group.heads.values()):
            if module is not None:
                module.to(self.device).requires_grad_(False)
        return group

    def _trunk(self, name: str, origin: str) -> ParamGroup:
        """A group with its trunk, and no heads yet."""
        if self.adapter is None:
            return ParamGroup(self._copy_of_start(name) if origin == "start" else self._load_model(origin))
        base, start_tensors = self.base(origin), self.adapter.tensors if origin == "start" else {}
        if name in self.frozen and not start_tensors:
            return ParamGroup(base, is_adapter_base=True)
        return ParamGroup(lora.adapt(base, self.adapter.lora, self.seed, start_tensors))

    def _sharded_trunk(self, name: str, origin: str, ranks: Ranks) -> ParamGroup:
        """A group with its trunk in parts over the ranks, and no heads yet."""
        from .sharding import shard, skeleton

        if origin == "start":
            model = self.start
        else:
            model = self._bases.get(origin) or ranks.from_first(lambda: self._load_model(origin), skeleton)
            self._bases[origin] = model  # type: ignore[assignment]
        tensors = dict(model.named_parameters()) if ranks.rank == 0 else {}
        short = self.device != "cpu" and self.dtype == "bfloat16"
        if self.adapter is None:
            return ParamGroup(shard(skeleton(model), tensors, ranks, short, self.division))
        base, start_tensors = self.base(origin), self.adapter.tensors if origin == "start" else {}
        if ranks.rank == 0 and origin not in self.base_fingerprints:
            self.base_fingerprints[origin] = files.fingerprint(base.named_tensors())
        if name in self.frozen and not start_tensors:
            return ParamGroup(shard(skeleton(model), tensors, ranks, short, self.division), is_adapter_base=True)
        if ranks.rank == 0:
            tensors |= lora.factors(lora.adapt(base, self.adapter.lora, self.seed, start_tensors))
        adapted = lora.adapt(skeleton(base), self.adapter.lora, self.seed, start_tensors)
        return ParamGroup(shard(adapted, tensors, ranks, short, self.division))

    def structure(self, name: str) -> Model:
        """The transformer of a group for its shape: with ranks without weights."""
        if self.ranks is None:
            return self.trunk(name)
        origin, group = self.origin(name), self[name]
        model = self.start if origin == "start" else self._bases[origin]
        if self.adapter is None or group.is_adapter_base:
            return model
        return lora.adapt(model, self.adapter.lora, self.seed)

    def _copy_of_start(self, name: str) -> Model:
        """A trunk equal to the start: with its tensors where the group is frozen or the start donated, else a copy."""
        if name in self.frozen:
            self._shared.add(name)
            return shared_copy(self.start)
        takes_start = self.donate_start and [n for n in self.specs if self.origin(n) == "start"] == [name]
        return shared_copy(self.start) if takes_start else copy.deepcopy(self.start)

    def base(self, origin: str) -> Transformer:
        """The base model of the adapters of one origin.

        Raises BadValue for one that is no Transformer of ours.
        """
        if origin not in self._bases:
            model = self.start if origin == "start" else self._load_model(origin)
            if not isinstance(model, Transformer):
                raise BadValue(
                    f"{origin}: adapters need a model of selfteach's own families; this one runs through "
                    "transformers: train it in full"
                )
            if self.ranks is not None:
                return model
            if keeps_half(self.device, self.dtype):
                lora.halve(model)
            self._bases[origin] = model.to(self.device).requires_grad_(False)
        return self._bases[origin]

    def _load_model(self, origin: str) -> Model:
        trunk, _ = files.load(Path(origin))
        if trunk.config.vocab != self.start.config.vocab:
            raise BadCheckpoint(
                f"{origin}: its vocabulary has {trunk.config.vocab} ids, the run's model {self.start.config.vocab}; "
                "take a model of the same tokenizer"
            )
        return trunk.to(_dtype(self.start))


def keeps_half(device: str, dtype: str) -> bool:
    """Whether the base of adapters is kept in bf16: on a GPU, since on a processor our kernels pack it themselves."""
    return device != "cpu" and dtype == "bfloat16"


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, on the same memory; a tensor that is not sharded itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return, operator]


def shared_copy(model: M) -> M:
    """Another model on the same tensors, with parameters of its own that have no gradient."""
    return copy.deepcopy(model, {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()})


def _dtype(model: Model) -> torch.dtype:
    return model.lm_head.weight.dtype


@torch.no_grad()
def _zero_head(width: int, dtype: torch.dtype) -> nn.Linear:
    """A scalar head of zero weight and bias, whose output is 0 until it is trained."""
    # Made on "meta": the default initialisation would draw from the global generator. (`to_empty` would import sympy.)
    head = nn.Linear(width, 1, device="meta", dtype=dtype)
    head.weight, head.bias = (nn.Parameter(torch.zeros(p.shape, dtype=dtype)) for p in (head.weight, head.bias))
    return head
