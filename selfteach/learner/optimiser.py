"""AdamW over named parameters (Loshchilov & Hutter 2019), one state per tuple of weight groups, as tensors that go to a file and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import BadCheckpoint
from .groups import Groups
from .settings import Settings

PARTS = ("exp_avg", "exp_avg_sq", "step")


def named(groups: Groups, params: tuple[str, ...]) -> dict[str, Tensor]:
    """`group/parameter` -> tensor, of some groups."""
    return {f"{g}/{n}": p for g in params for n, p in groups[g].names().items()}


class Optimisers:
    """The optimisers of a run, made when their groups first move. Matrices decay, vectors (norms, biases) do not."""

    def __init__(self, groups: Groups, settings: Settings):
        self.groups = groups
        self.settings = settings
        self._made: dict[tuple[str, ...], torch.optim.AdamW] = {}

    def __getitem__(self, params: tuple[str, ...]) -> torch.optim.AdamW:
        if params not in self._made:
            tensors = list(named(self.groups, params).values())
            s = self.settings
            kinds = [
                {"params": [p for p in tensors if p.ndim >= 2], "weight_decay": s.weight_decay},
                {"params": [p for p in tensors if p.ndim < 2], "weight_decay": 0.0},
            ]
            with torch.no_grad():
                self._made[params] = torch.optim.AdamW([k for k in kinds if k["params"]], lr=s.lr, betas=s.betas, eps=s.eps, fused=True)
        return self._made[params]

    def step(self, params: tuple[str, ...], lr: float) -> None:
        """Move the parameters that have a gradient."""
        one = self[params]
        for kind in one.param_groups:
            kind["lr"] = lr
        one.step()

    def tensors(self) -> dict[str, Tensor]:
        """Moments and step counts, by `groups|group/parameter|part`."""
        out: dict[str, Tensor] = {}
        for params, one in self._made.items():
            for name, p in named(self.groups, params).items():
                out |= {f"{','.join(params)}|{name}|{part}": one.state[p][part] for part in PARTS if part in one.state.get(p, {})}
        return out

    def fill(self, given: Mapping[str, Tensor], file: Path) -> None:
        """Take over what `tensors` gave. Raises BadCheckpoint for a tensor that belongs to no parameter here, or to one of another shape."""
        made: dict[tuple[str, ...], dict[str, dict[str, Tensor]]] = {}
        for key, tensor in given.items():
            params, name, part = (*key.split("|"), "", "")[:3]
            if part not in PARTS or not all(g in self.groups for g in params.split(",")):
                raise BadCheckpoint(f"{file}: {key} is not a state of an optimiser here")
            made.setdefault(tuple(params.split(",")), {}).setdefault(name, {})[part] = tensor
        self._made.clear()
        for params, states in made.items():
            own = named(self.groups, params)
            for name, state in states.items():
                if name not in own or set(state) != set(PARTS) or state["exp_avg"].shape != own[name].shape:
                    raise BadCheckpoint(f"{file}: the state of {name} does not fit the parameters of {', '.join(params)}")
                self[params].state[own[name]] = {part: t.clone() for part, t in state.items()}
