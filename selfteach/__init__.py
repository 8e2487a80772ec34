"""Language models that teach themselves: published RL post-training methods as short values, and one loop that runs
them all.

    from selfteach import methods, train
    run = train(methods.grpo(rollouts=8), model="tiny", task="chain_sum", steps=40)     # docs/python.md
    run.metrics, run.evaluations, run.plot(), run.rollouts(step=3), run.policy.generate("2 + 3 = ")

    run = train(methods.grpo(), train="mine.jsonl", reward=my_reward, model="path/to/a/model")      # docs/data.md

Names are imported when they are first asked for, so that `import selfteach` costs nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if os.environ.get("SELFTEACH_ISA"):  # before torch is loaded
    from .core.processor import mask_libraries

    mask_libraries()

if TYPE_CHECKING:
    from .api import Run, Step, Steps, evaluate, load, resume, steps, train, train_async
    from .configuration import RunConfig, plan, task_source
    from .core import Check, Claim, Env, Method, Score, SelfteachError, Steering, Task, TaskSource, block, method, task
    from .experiments import compare, reproduce
    from .loop.settings import EvalConfig, RunSettings

_HOME = {
    ".api": ("Run", "Step", "Steps", "evaluate", "load", "resume", "steps", "train", "train_async"),
    ".configuration": ("RunConfig", "plan", "task_source"),
    ".core": (
        "Check",
        "Claim",
        "Env",
        "Method",
        "Score",
        "SelfteachError",
        "Steering",
        "TaskSource",
        "Task",
        "block",
        "method",
        "task",
    ),
    ".experiments": ("compare", "reproduce"),
    ".loop.settings": ("EvalConfig", "RunSettings"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Check",
    "Claim",
    "Env",
    "EvalConfig",
    "Method",
    "Run",
    "RunConfig",
    "RunSettings",
    "Score",
    "SelfteachError",
    "Steering",
    "Step",
    "Steps",
    "Task",
    "TaskSource",
    "block",
    "compare",
    "evaluate",
    "load",
    "method",
    "plan",
    "reproduce",
    "resume",
    "steps",
    "task",
    "task_source",
    "train",
    "train_async",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .core.versions import version

        return version("selfteach")
    if name in _MODULE:
        value = getattr(import_module(_MODULE[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'selfteach' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
