"""AdamW over named parameters (Loshchilov & Hutter 2019), one state per tuple of weight groups, as tensors that go to a file and back.

In 8 bits (Dettmers et al. 2022) the moments are codes of blocks, each with its largest absolute value; the package bitsandbytes does it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadCheckpoint, BadValue
from .groups import Groups
from .settings import Settings

PARTS = frozenset({"exp_avg", "exp_avg_sq", "step"})
CODED = frozenset({"state1", "state2", "absmax1", "absmax2", "qmap1", "qmap2", "step"})  # in 8 bits
SMALL = frozenset({"state1", "state2", "step"})  # of a tensor too small to be worth it, in float32


def named(groups: Groups, params: tuple[str, ...]) -> dict[str, Tensor]:
    """`group/parameter` -> tensor, of some groups."""
    return {f"{g}/{n}": p for g in params for n, p in groups[g].names().items()}


def in_8_bits() -> Any:
    """bitsandbytes' AdamW8bit. Raises BadValue where the package is not installed."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells of kernels that have nothing to do with moments
    try:
        from bitsandbytes.optim import AdamW8bit  # type: ignore[import-not-found]
    except ImportError as error:
        raise BadValue(f"optimiser adamw8bit: needs the package bitsandbytes ({error}); pip install 'selfteach[int8]', or take adamw") from None
    return AdamW8bit


class Optimisers:
    """The optimisers of a run, made when their groups first move. Matrices decay, vectors (norms, biases) do not."""

    def __init__(self, groups: Groups, settings: Settings):
        self.groups = groups
        self.settings = settings
        self.coded = settings.optimiser == "adamw8bit"
        if self.coded:
            in_8_bits()  # said before any work is done
        self._made: dict[tuple[str, ...], torch.optim.Optimizer] = {}

    def __getitem__(self, params: tuple[str, ...]) -> torch.optim.Optimizer:
        if params not in self._made:
            tensors = list(named(self.groups, params).values())
            s = self.settings
            kinds: list[dict[str, Any]] = [
                {"params": [p for p in tensors if p.ndim >= 2], "weight_decay": s.weight_decay},
                {"params": [p for p in tensors if p.ndim < 2], "weight_decay": 0.0},
            ]
            kinds = [k for k in kinds if k["params"]]
            with torch.no_grad():
                if self.coded:
                    self._made[params] = in_8_bits()(kinds, lr=s.lr, betas=s.betas, eps=s.eps)
                else:
                    self._made[params] = torch.optim.AdamW(kinds, lr=s.lr, betas=s.betas, eps=s.eps, fused=True)
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
                state = one.state.get(p, {})
                out |= {f"{','.join(params)}|{name}|{part}": torch.as_tensor(state[part]) for part in sorted(CODED | PARTS) if part in state}
        return out

    def fill(self, given: Mapping[str, Tensor], file: Path) -> None:
        """Take over what `tensors` gave. Raises BadCheckpoint for a tensor that belongs to no parameter here, or to one of another shape."""
        made: dict[tuple[str, ...], dict[str, dict[str, Tensor]]] = {}
        for key, tensor in given.items():
            params, name, part = (*key.split("|"), "", "")[:3]
            if part not in CODED | PARTS or not all(g in self.groups for g in params.split(",")):
                raise BadCheckpoint(f"{file}: {key} is not a state of an optimiser here")
            made.setdefault(tuple(params.split(",")), {}).setdefault(name, {})[part] = tensor
        self._made.clear()
        kinds, first = ((CODED, SMALL), "state1") if self.coded else ((PARTS,), "exp_avg")
        for params, states in made.items():
            own = named(self.groups, params)
            for name, state in states.items():
                if set(state) not in kinds:
                    raise BadCheckpoint(f"{file}: the state of {name} is not one of the optimiser {self.settings.optimiser}")
                if name not in own or state[first].shape != own[name].shape:
                    raise BadCheckpoint(f"{file}: the state of {name} does not fit the parameters of {', '.join(params)}")
                self[params].state[own[name]] = {part: self._taken(part, t, own[name]) for part, t in state.items()}

    def _taken(self, part: str, t: Tensor, p: Tensor) -> Any:
        """A tensor of a file as the optimiser keeps it: on its parameter's device, the count of steps as a number or where it was."""
        if part == "step":
            return int(t) if self.coded else t.to(p.device, copy=True)
        return t.to(p.device, copy=True)
