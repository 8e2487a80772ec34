"""Weight groups by name, their scalar heads, and how a member puts groups together. A group is built when it is first asked for."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.errors import BadCheckpoint, BadValue, unknown
from ..core.method import Member, Weights
from ..model import files
from ..model.quantities import HEADS
from ..model.transformer import Transformer
from .settings import Precision

HEAD_ONLY = "new:head"


@dataclass
class Group:
    """Parameters under one name: a trunk, scalar heads, or both."""

    trunk: Transformer | None
    heads: dict[str, nn.Linear] = field(default_factory=dict)

    def names(self) -> dict[str, Tensor]:
        """Parameter name -> tensor: the trunk's in the Hub's names, a head's as `value_head.weight` [1, width] and `.bias` [1]."""
        own = dict(self.trunk.names()) if self.trunk is not None else {}
        return own | {f"{h}_head.{n}": p for h, head in self.heads.items() for n, p in head.named_parameters()}


@dataclass(frozen=True)
class Seat:
    """A member resolved: the group that holds its trunk, whether it speaks, and the group of each of its scalar heads."""

    trunk: str
    vocab: bool
    heads: Mapping[str, str]


class Groups:
    """All weight groups of a run, and the members made of them.

    Nothing here has a gradient except inside `moving`. Raises BadValue for members that cannot be put together.
    """

    def __init__(
        self,
        weights: Mapping[str, Weights],
        cast: Mapping[str, Member],
        start: Transformer,
        device: str = "cpu",
        dtype: Precision = "float32",
        recompute: bool = False,
    ):
        self.specs = dict(weights)
        self.start = start
        self.device = device
        self.dtype = dtype
        self.recompute = recompute
        self._built: dict[str, Group] = {}
        self.seats = {name: self._seat(name, member) for name, member in cast.items()}

    def __getitem__(self, name: str) -> Group:
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def __contains__(self, name: str) -> bool:
        return name in self.specs

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

    def trunk(self, name: str) -> Transformer:
        """The trunk of a group that has one."""
        found = self[name].trunk
        assert found is not None, name
        return found

    @contextmanager
    def moving(self, names: tuple[str, ...]) -> Iterator[None]:
        """Inside, the parameters of these groups collect gradients; all others are constants."""
        params = [p for n in names for p in self[n].names().values()]
        for p in params:
            p.requires_grad_(True)
        try:
            yield
        finally:
            for p in params:
                p.requires_grad_(False)

    @torch.no_grad()
    def copy(self, target: str, source: str, rate: float) -> None:
        """target += rate * (source - target), on the parameters that both have. Raises BadValue where there are none, or shapes differ."""
        to, of = self[target].names(), self[source].names()
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
        trunk: Transformer | None = None
        if root == "start":
            trunk = copy.deepcopy(self.start)
        elif root != HEAD_ONLY:
            trunk, _ = files.load(Path(root))
            if trunk.c.vocab != self.start.c.vocab:
                raise BadCheckpoint(
                    f"{root}: its vocabulary has {trunk.c.vocab} ids, the run's model {self.start.c.vocab}: ids would not mean the same"
                )
            trunk = trunk.to(_dtype(self.start))
        if trunk is not None:
            trunk.recompute = self.recompute
        group = Group(trunk)
        for seat in self.seats.values():
            for head, home in seat.heads.items():
                if home == name and head not in group.heads:
                    width = (trunk if seat.trunk == name and trunk is not None else self.trunk(seat.trunk)).c.width
                    group.heads[head] = _fresh(width, _dtype(self.start))
        for module in (group.trunk, *group.heads.values()):
            if module is not None:
                module.to(self.device).requires_grad_(False)
        return group


def _dtype(model: Transformer) -> torch.dtype:
    return model.lm_head.weight.dtype


@torch.no_grad()
def _fresh(width: int, dtype: torch.dtype) -> nn.Linear:
    """A head of zero weight and zero bias: until it has learned, it says 0 of everything."""
    head = nn.Linear(width, 1, device="meta", dtype=dtype).to_empty(device="cpu")  # a default beginning would draw from the global generator
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
