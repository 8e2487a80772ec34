"""AdamW over named parameters (Loshchilov & Hutter 2019), one optimiser per tuple of parameter groups.

Its state is saved and loaded as tensors. In 8 bits (Dettmers et al. 2022) the moments are codes by blocks, each with
its largest absolute value, by the package bitsandbytes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from ..core.errors import BadCheckpoint, BadValue
from .param_groups import ParamGroups, local
from .settings import LearnerSettings

STATE_KEYS = frozenset({"exp_avg", "exp_avg_sq", "step"})
STATE_KEYS_8BIT = frozenset({"state1", "state2", "absmax1", "absmax2", "qmap1", "qmap2", "step"})  # in 8 bits
STATE_KEYS_SMALL = frozenset({"state1", "state2", "step"})  # of a tensor too small to be worth it, in float32


def named_parameters(groups: ParamGroups, params: tuple[str, ...]) -> dict[str, Tensor]:
    """The trainable tensors of some groups by `group/parameter`."""
    return {f"{g}/{n}": p for g in params for n, p in groups[g].named_parameters().items()}


def adamw_8bit_class() -> Any:
    """The class AdamW8bit of bitsandbytes; raises BadValue where the package is not installed."""
    # It warns of kernels that have nothing to do with moments.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        from bitsandbytes.optim import AdamW8bit  # type: ignore[import-not-found]
    except ImportError as error:
        raise BadValue(
            f"optimiser adamw8bit: needs the package bitsandbytes ({error}); pip install 'selfteach[int8]', or "
            "take adamw"
        ) from None
    return AdamW8bit


class AdamW:
    """torch.optim.AdamW(fused=True), with its state and its bits, by the function that it calls.

    The class itself imports torch._dynamo as the first of it is made, which takes seconds: most of the start of a small
    run.

    param_groups  each with `params`, `weight_decay` and `lr`
    state         parameter -> its moments exp_avg and exp_avg_sq, and step, f32[]: steps done; of a sharded parameter
                  the moments of this rank's part
    """

    def __init__(self, param_groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{**group, "lr": lr} for group in param_groups]
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self.betas, self.eps = betas, eps

    @torch.no_grad()
    def step(self) -> None:
        """Step the parameters that have a gradient."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            for p in params:
                if p not in self.state:
                    self.state[p] = {
                        "step": torch.zeros((), device=p.device),
                        "exp_avg": torch.zeros_like(local(p)),
                        "exp_avg_sq": torch.zeros_like(local(p)),
                    }
            states = [self.state[p] for p in params]
            adamw(
                [local(p) for p in params],
                [local(p.grad) for p in params],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=self.eps,
                maximize=False,
            )


class Optimisers:
    """The optimisers of a run, each made on first use; weight decay is for matrices, not for norms and biases."""

    def __init__(self, groups: ParamGroups, settings: LearnerSettings) -> None:
        self.groups = groups
        self.settings = settings
        self.use_8bit = settings.optimiser == "adamw8bit"
        if self.use_8bit:
            adamw_8bit_class()  # raises before any work is done
        self._optimisers: dict[tuple[str, ...], Any] = {}  # AdamW, or AdamW8bit of bitsandbytes

    def __getitem__(self, params: tuple[str, ...]) -> Any:
        if params not in self._optimisers:
            tensors = list(named_parameters(self.groups, params).values())
            s = self.settings
            param_groups: list[dict[str, Any]] = [
                {"params": [p for p in tensors if p.ndim >= 2], "weight_decay": s.weight_decay},
                {"params": [p for p in tensors if p.ndim < 2], "weight_decay": 0.0},
            ]
            param_groups = [k for k in param_groups if k["params"]]
            with torch.no_grad():
                if self.use_8bit:
                    self._optimisers[params] = adamw_8bit_class()(
                        param_groups, lr=s.lr, betas=s.adam_betas, eps=s.adam_eps
                    )
                else:
                    self._optimisers[params] = AdamW(param_groups, s.lr, s.adam_betas, s.adam_eps)
        return self._optimisers[params]

    def step(self, params: tuple[str, ...], lr: float) -> None:
        """Step the parameters that have a gradient."""
        optimiser = self[params]
        for param_group in optimiser.param_groups:
            param_group["lr"] = lr
        optimiser.step()

    def tensors(self) -> dict[str, Tensor]:
        """Moments and step counts by `groups|group/parameter|key`."""
        out: dict[str, Tensor] = {}
        for params, optimiser in self._optimisers.items():
            for name, p in named_parameters(self.groups, params).items():
                state = optimiser.state.get(p, {})
                out |= {
                    f"{','.join(params)}|{name}|{part}": torch.as_tensor(state[part])
                    for part in sorted(STATE_KEYS_8BIT | STATE_KEYS)
                    if part in state
                }
        return out

    def fill(self, given: Mapping[str, Tensor], file: Path) -> None:
        """Load the state that `tensors` gave.

        Raises BadCheckpoint for a tensor of no parameter here, or of one with another shape.
        """
        made = self.checked(given, file)
        self._optimisers.clear()
        for params, states in made.items():
            own = named_parameters(self.groups, params)
            for name, state in states.items():
                self[params].state[own[name]] = {
                    part: self._state_value(part, t, own[name]) for part, t in state.items()
                }

    def checked(self, given: Mapping[str, Tensor], file: Path) -> dict[tuple[str, ...], dict[str, dict[str, Tensor]]]:
        """A state as {groups: {parameter: {key: tensor}}}. Raises BadCheckpoint as `fill` does."""
        made: dict[tuple[str, ...], dict[str, dict[str, Tensor]]] = {}
        for key, tensor in given.items():
            params, name, part = (*key.split("|"), "", "")[:3]
            if part not in STATE_KEYS_8BIT | STATE_KEYS or not all(g in self.groups for g in params.split(",")):
                raise BadCheckpoint(f"{file}: {key} is not a state of an optimiser here")
            made.setdefault(tuple(params.split(",")), {}).setdefault(name, {})[part] = tensor
        param_groups, first = (
            ((STATE_KEYS_8BIT, STATE_KEYS_SMALL), "state1") if self.use_8bit else ((STATE_KEYS,), "exp_avg")
        )
        for params, states in made.items():
            own = named_parameters(self.groups, params)
            for name, state in states.items():
                if set(state) not in param_groups:
                    raise BadCheckpoint(
                        f"{file}: the state of {name} is not one of the optimiser {self.settings.optimiser}"
                    )
                if name not in own or state[first].shape != own[name].shape:
                    raise BadCheckpoint(
                        f"{file}: the state of {name} does not fit the parameters of {', '.join(params)}"
                    )
        return made

    def set_state(self, params: tuple[str, ...], name: str, part: str, value: Tensor) -> None:
        """Set one state of a parameter; of a sharded one that of this rank's part."""
        p = named_parameters(self.groups, params)[name]
        self[params].state.setdefault(p, {})[part] = self._state_value(part, value, p)

    def clear(self, groups: Collection[str] | None = None) -> None:
        """Drop the state of the optimisers that step one of these groups; None: of all."""
        for params in [p for p in self._optimisers if groups is None or set(p) & set(groups)]:
            del self._optimisers[params]

    def _state_value(self, part: str, t: Tensor, p: Tensor) -> Any:
        """A tensor of a file as the optimiser keeps it: on its device; in 8 bits the step count is an int."""
        if part == "step":
            return int(t) if self.use_8bit else t.to(p.device, copy=True)
        return t.to(p.device, copy=True)
