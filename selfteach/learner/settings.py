"""The settings of a learner, and the learning rate schedule."""

from __future__ import annotations

import math
from typing import Literal

from ..core.settings import setting, settings

Precision = Literal["float32", "bfloat16"]


@settings
class LearnerSettings:
    """Settings of optimisation, precision and memory; a run's settings extend them (loop/settings.py)."""

    steps: int = setting(60, "steps of the loop (default: what the method's claim says on its own task)", least=0)
    lr: float = setting(
        3e-4,
        "peak learning rate (default: the task's for tiny models, 1e-5 for real ones, ten times that for adapters)",
        above=0,
    )
    decay: Literal["constant", "linear", "cosine"] = setting(
        "constant", "how the learning rate falls: not at all, or to 0 at the last step"
    )
    warmup: int = setting(0, "steps over which the learning rate rises", least=0)
    grad_clip: float = setting(1.0, "largest global norm of a gradient; a longer one is scaled down to it", above=0)
    weight_decay: float = setting(0.0, "AdamW's weight decay", least=0)
    adam_betas: tuple[float, float] = setting(
        (0.9, 0.95), "AdamW's decay rates of the first and second moment", least=0, most=0.999999
    )
    adam_eps: float = setting(1e-8, "AdamW's epsilon", above=0)
    optimiser: Literal["adamw", "adamw8bit"] = setting(
        "adamw",
        "adamw8bit: moments in 8 bits by blocks (Dettmers et al. 2022), by bitsandbytes (selfteach[int8]); small"
        " tensors keep theirs in float32",
    )
    device: str = setting("cpu", "auto (a GPU where there is one), cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "float32",
        "precision of the trunk's matmuls, and where a kernel does them those of head and attention; weights, moments,"
        " softmax and sums stay float32 (auto: bfloat16 on a GPU, float32 on a CPU)",
    )
    micro_tokens: int = setting(
        4096, "tokens of a micro-batch: memory and speed, never the result; halved where memory runs out", least=1
    )
    learner: Literal["local", "fsdp"] = setting(
        "local", "local: one process; fsdp: weights, gradients and moments sharded over --world processes by PyTorch"
    )
    world: int = setting(0, "processes of --learner fsdp (default: those of torchrun, else 1)", least=0, most=4096)
    tensor_parallel: int = setting(
        1,
        "of the processes of --learner fsdp, how many share each layer's matrices; the others share sequences",
        least=1,
    )
    learner_seconds: float = setting(
        600.0, "seconds that a process of --learner fsdp may wait for the others within a step", above=0
    )
    recompute: bool = setting(
        False, "activation checkpointing: layers are computed again in the backward; less memory, a third more work"
    )


def learning_rate(settings: LearnerSettings, step: int) -> float:
    """The learning rate of step 0, 1, ...: linear warmup over `warmup` steps, then constant, or falling to 0."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.decay == "constant":
        return settings.lr
    done = min(1.0, (step - settings.warmup) / max(1, settings.steps - settings.warmup))
    return settings.lr * (1 - done if settings.decay == "linear" else (1 + math.cos(math.pi * done)) / 2)
