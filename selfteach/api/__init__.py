"""The Python API: train a run, look at it, sample its policy, carry it away.

Names are imported when they are first asked for, so that what reads runs does not wait for what trains them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..configuration import RunConfig as RunConfig
    from ..configuration import plan as plan
    from ..evaluation import evaluate as evaluate
    from ..evaluation import trained_model as trained_model
    from ..loop.settings import EvalConfig as EvalConfig
    from ..loop.settings import RunSettings as RunSettings
    from ..training import new_run_folder as new_run_folder
    from .run import Run as Run
    from .run import Step as Step
    from .run import load as load
    from .start import Steps as Steps
    from .start import resume as resume
    from .start import steps as steps
    from .start import train as train
    from .start import train_async as train_async

_HOME = {
    "..configuration": ("RunConfig", "plan"),
    "..loop.settings": ("EvalConfig", "RunSettings"),
    "..evaluation": ("evaluate", "trained_model"),
    "..training": ("new_run_folder",),
    ".run": ("Run", "Step", "load"),
    ".start": ("Steps", "resume", "steps", "train", "train_async"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE[name], __name__), name)
    globals()[name] = value
    return value
