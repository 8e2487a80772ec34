"""Weight groups by name, their scalar heads, and how a member puts groups together. A group is built when it is first asked for."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..core.errors import BadCheckpoint, BadValue, unknown
from ..core.method import Member, Weights
from ..model import files, lora
from ..model.base import Model
from ..model.quantities import HEADS
from ..model.transformer import Attend, Transformer
from .settings import Precision

HEAD_ONLY = "new:head"
M = TypeVar("M", bound=nn.Module)


@dataclass
class Group:
    """Parameters under one name: a trunk, scalar heads, or both. `lent`: the trunk is the base of adapters, and never moves."""

    trunk: Model | None
    heads: dict[str, nn.Linear] = field(default_factory=dict)
    lent: bool = False

    def names(self) -> dict[str, Tensor]:
        """Parameter name -> tensor, of what is its own to move: the trunk's in the Hub's names, or those of its adapters alone; a head's as
        `value_head.weight` [1, width] and `.bias` [1]."""
        own = {} if self.trunk is None or self.lent else lora.factors(self.trunk) or self.trunk.names()
        return {**own, **self._heads()}

    def whole(self) -> Mapping[str, Tensor]:
        """What it computes with, in the Hub's names, adapters merged in."""
        if self.trunk is not None and lora.factors(self.trunk):
            return lora.Merged(self.trunk, self._heads())
        own = {} if self.trunk is None else self.trunk.names()
        return {n: p.detach() for n, p in {**own, **self._heads()}.items()}

    def _heads(self) -> dict[str, Tensor]:
        return {f"{h}_head.{n}": p for h, head in self.heads.items() for n, p in head.named_parameters()}


@dataclass(frozen=True)
class Seat:
    """A member resolved: the group that holds its trunk, whether it speaks, and the group of each of its scalar heads."""

    trunk: str
    vocab: bool
    heads: Mapping[str, str]


class Groups:
    """All weight groups of a run, and the members made of them.

    Nothing here has a gradient except inside `moving`. `still`: groups that nothing is meant to write to; those that begin as the start are
    its own tensors. `given`: the start is not needed by anybody else, so that a group may have its tensors. Raises BadValue for members that
    cannot be put together.

    With an `adapter`, groups of one root are adapters over one base, which is the start itself (or a path's model, loaded once); a group in
    `still` is the base. Scalar heads are whole in any case.
    """

    def __init__(
        self,
        weights: Mapping[str, Weights],
        cast: Mapping[str, Member],
        start: Model,
        device: str = "cpu",
        dtype: Precision = "float32",
        adapter: lora.Adapter | None = None,
        still: Collection[str] = (),
        seed: int = 0,
        given: bool = False,
        recompute: bool = False,
    ):
        self.specs = dict(weights)
        self._shared: set[str] = set()  # groups whose trunk is the start's tensors
        self.given = given
        self.start = start
        self.device = device
        self.dtype = dtype
        self.adapter, self.still, self.seed = adapter, frozenset(still), seed
        self.recompute = recompute
        self.steps = 0  # of the optimisers: the address of dropout
        self._now: tuple[str, ...] = ()  # groups that are moving
        self._bases: dict[str, Transformer] = {}
        self._built: dict[str, Group] = {}
        self.seats = {name: self._seat(name, member) for name, member in cast.items()}

    def __getitem__(self, name: str) -> Group:
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def __contains__(self, name: str) -> bool:
        return name in self.specs

    def own(self, name: str) -> Group:
        """A group that is about to be written to: its tensors are nobody else's."""
        group = self[name]
        if name in self._shared and group.trunk is not None:
            for p in group.trunk.parameters():
                p.data = p.data.clone()
            self._shared.discard(name)
        return group

    @property
    def sharing(self) -> bool:
        """Whether a context that several sequences share is computed once."""
        return self.start.pluggable

    def root(self, name: str) -> str:
        """Where a group's first weights come from: start, new:head or a path. Copies of groups are followed to their origin."""
        seen = [name]
        while (source := self._spec(seen[-1]).source) in self.specs:
            if source in seen:
                raise BadValue(f"weights {name}: its source goes round in a circle: {' -> '.join([*seen, source])}")
            seen.append(source)
        if source.startswith("new:") and source != HEAD_ONLY:
            raise BadValue(f"weights {name}: {source!r} cannot be made; there are: start, {HEAD_ONLY}, a path, another group")
        return source

    def trunk(self, name: str) -> Model:
        """The trunk of a group that has one."""
        found = self[name].trunk
        assert found is not None, name
        return found

    @contextmanager
    def moving(self, names: tuple[str, ...]) -> Iterator[None]:
        """Inside, the parameters of these groups collect gradients; all others are constants."""
        params = [p for n in names for p in self.own(n).names().values()]
        for p in params:
            p.requires_grad_(True)
        before, self._now = self._now, names
        try:
            yield
        finally:
            self._now = before
            for p in params:
                p.requires_grad_(False)

    def drop(self, name: str, attend: Attend, marks: Tensor) -> None:
        """Dropout for the forward of a group's trunk with this `attend`, over the tokens of `marks`: of adapters that move, as they learn.

        Drawn by seed, optimiser step, layer and the text up to the token: it depends neither on micro-batches nor on which pass it is.
        """
        if name in self._now and self.adapter is not None and self.adapter.lora.dropout:
            lora.drop(self.trunk(name), attend, marks, self.seed, "dropout", self.steps)

    @torch.no_grad()
    def copy(self, target: str, source: str, rate: float) -> None:
        """target += rate * (source - target), on the parameters that both have. Raises BadValue where there are none, or shapes differ.

        Of adapters the factors are copied or averaged, each by itself (as teachers over adapters are: the mean of products has a higher rank);
        with rate 1, or with the base as the source, which is B = 0, that is the same as on merged weights.
        """
        to, of = self.own(target).names(), self[source].names()
        if self[source].lent and self[target].trunk is not None and self.root(target) == self.root(source):
            of = {n: torch.zeros_like(p) if n.endswith("lora_B") else p for n, p in to.items() if n.endswith(("lora_A", "lora_B"))} | of
        elif self.adapter and self[target].trunk is not None and self[source].trunk is not None and self.root(target) != self.root(source):
            raise BadValue(f"weights {target}: adapters over {self.root(target)}; {source}, over {self.root(source)}, cannot be copied to it")
        common = to.keys() & of.keys()
        if not common:
            raise BadValue(f"weights {target}: nothing in common with {source}, so it cannot be copied from it")
        for name in sorted(common):
            if to[name].shape != of[name].shape:
                raise BadValue(f"weights {target}: {name} has shape {tuple(to[name].shape)}, in {source} {tuple(of[name].shape)}")
            if rate == 1.0:
                to[name].copy_(of[name])
            else:
                to[name].lerp_(of[name], rate)

    def _spec(self, name: str) -> Weights:
        if name not in self.specs:
            raise unknown("weight group", name, self.specs)
        return self.specs[name]

    def _seat(self, name: str, member: Member) -> Seat:
        trunks = [w for w in member.weights if self.root(w) != HEAD_ONLY]
        if len(trunks) != 1:
            raise BadValue(f"member {name}: it needs exactly one group with a trunk, not {len(trunks)} ({', '.join(trunks) or 'none'})")
        for head in member.heads:
            if head != "vocab" and head not in HEADS:
                raise unknown("head", head, ("vocab", *HEADS))
        heads = {h: member.weights[-1] for h in member.heads if h != "vocab"}
        return Seat(trunks[0], "vocab" in member.heads, heads)

    def _build(self, name: str) -> Group:
        root = self.root(name)
        group = Group(None) if root == HEAD_ONLY else self._trunk(name, root)
        trunk = group.trunk
        if trunk is not None:
            trunk.recompute = self.recompute
        for seat in self.seats.values():
            for head, home in seat.heads.items():
                if home == name and head not in group.heads:
                    width = (trunk if seat.trunk == name and trunk is not None else self.trunk(seat.trunk)).c.width
                    group.heads[head] = _fresh(width, _dtype(self.start))
        for module in (group.trunk, *group.heads.values()):
            if module is not None:
                module.to(self.device).requires_grad_(False)
        return group

    def _trunk(self, name: str, root: str) -> Group:
        """A group with its trunk, and no heads yet."""
        if self.adapter is None:
            return Group(self._started(name) if root == "start" else self._loaded(root))
        base, given = self.base(root), self.adapter.tensors if root == "start" else {}
        if name in self.still and not given:
            return Group(base, lent=True)
        return Group(lora.adapt(base, self.adapter.lora, self.seed, given))

    def _started(self, name: str) -> Model:
        """A trunk that begins as the start: its very tensors where neither will be written to, or nobody else needs them; else a copy."""
        if name in self.still:
            self._shared.add(name)
            return twin(self.start)
        alone = self.given and [n for n in self.specs if self.root(n) == "start"] == [name]
        return twin(self.start) if alone else copy.deepcopy(self.start)

    def base(self, root: str) -> Transformer:
        """The one model that the adapters of a root are over. Raises BadValue for one that is no Transformer of ours."""
        if root not in self._bases:
            model = self.start if root == "start" else self._loaded(root)
            if not isinstance(model, Transformer):
                raise BadValue(f"{root}: adapters need a model of selfteach's own families; this one runs through transformers: train it in full")
            self._bases[root] = model.to(self.device).requires_grad_(False)
        return self._bases[root]

    def _loaded(self, root: str) -> Model:
        trunk, _ = files.load(Path(root))
        if trunk.c.vocab != self.start.c.vocab:
            raise BadCheckpoint(f"{root}: its vocabulary has {trunk.c.vocab} ids, the run's model {self.start.c.vocab}: ids would not mean the same")
        return trunk.to(_dtype(self.start))


def twin(model: M) -> M:
    """Another model of the same tensors, as parameters of its own that have no gradient."""
    return copy.deepcopy(model, {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()})


def _dtype(model: Model) -> torch.dtype:
    return model.lm_head.weight.dtype


@torch.no_grad()
def _fresh(width: int, dtype: torch.dtype) -> nn.Linear:
    """A head of zero weight and zero bias: until it has learned, it says 0 of everything."""
    head = nn.Linear(width, 1, device="meta", dtype=dtype).to_empty(device="cpu")  # a default beginning would draw from the global generator
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
