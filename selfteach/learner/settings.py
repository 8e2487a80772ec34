"""What a learner is set to, and the learning rate over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ..core.errors import BadValue

Decay = Literal["constant", "linear", "cosine"]
Precision = Literal["float32", "bfloat16"]
Optimiser = Literal["adamw", "adamw8bit"]


@dataclass(frozen=True)
class Settings:
    """How a learner moves weights.

    lr          peak learning rate; `rate` bends it by `warmup` steps up and `decay` down to nothing at `decay_steps`
    clip        largest global norm of a gradient; a longer one is scaled down to it
    dtype       bfloat16: products in bf16 (the trunk's; on processors the head's and attention's too where a kernel does them); weights, moments,
                residuals, softmax, all sums and scalar heads stay float32
    tokens      tokens of a micro-batch: memory and cache, never the result
    optimiser   adamw8bit: moments in 8 bits by blocks (Dettmers et al. 2022), by bitsandbytes; small tensors keep theirs in float32
    recompute   layers are computed again on the way back instead of being kept: less memory, the same gradient, a third more work
    """

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0
    warmup: int = 0
    decay: Decay = "constant"
    decay_steps: int | None = None
    dtype: Precision = "float32"
    tokens: int = 4096
    device: str = "cpu"
    optimiser: Optimiser = "adamw"
    recompute: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("decay", Decay), ("dtype", Precision), ("optimiser", Optimiser)):
            if getattr(self, name) not in get_args(kind):
                raise BadValue(f"learner: {name} must be one of {', '.join(get_args(kind))}, not {getattr(self, name)!r}")
        if self.decay != "constant" and not self.decay_steps:
            raise BadValue(f"learner: a {self.decay} decay needs decay_steps, the step at which the rate is 0")
        if self.lr <= 0 or self.clip <= 0:
            raise BadValue(f"learner: lr and clip must be above 0, not {self.lr} and {self.clip}")
        if self.tokens < 1 or self.warmup < 0:
            raise BadValue(f"learner: tokens must be at least 1 and warmup at least 0, not {self.tokens} and {self.warmup}")


def rate(settings: Settings, step: int) -> float:
    """The learning rate of step 0, 1, ...: up in a line over `warmup` steps, then constant, or down to 0 at `decay_steps`."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.decay == "constant" or not settings.decay_steps:
        return settings.lr
    done = min(1.0, (step - settings.warmup) / max(1, settings.decay_steps - settings.warmup))
    return settings.lr * (1 - done if settings.decay == "linear" else (1 + math.cos(math.pi * done)) / 2)
