"""Language models that teach themselves: published RL post-training methods as short values, and one loop that runs them all.

    run = selfteach.train("grpo", task="chain_sum", steps=40)      # or selfteach.train(selfteach.plan("grpo", ...), out="runs/mine")
    run.figures["after"]["accuracy"]

Names are imported when they are first asked for, so that `import selfteach` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import Job, Run, Survey, evaluate, plan, resume, source_of, train
    from .core import Check, Claim, Method, Score, SelfteachError, Source, Task, block, method, task
    from .experiment import compare, reproduce

_HOME = {
    ".api": ("Job", "Run", "Survey", "evaluate", "plan", "resume", "source_of", "train"),
    ".core": ("Check", "Claim", "Method", "Score", "SelfteachError", "Source", "Task", "block", "method", "task"),
    ".experiment": ("compare", "reproduce"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Check",
    "Claim",
    "Job",
    "Method",
    "Run",
    "Score",
    "SelfteachError",
    "Source",
    "Survey",
    "Task",
    "block",
    "compare",
    "evaluate",
    "method",
    "plan",
    "reproduce",
    "resume",
    "source_of",
    "task",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("selfteach")
        except PackageNotFoundError:
            return "0+unknown"
    if name in _MODULE:
        value = getattr(import_module(_MODULE[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'selfteach' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
