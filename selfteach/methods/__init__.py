"""The methods, one file per paper: what the paper changes, and nothing else.

    from selfteach.methods import grpo, ssrl

A file has the name of its method; families are metadata (`grpo.family`). A file is imported when its method is first
accessed; `__init__.pyi` names them all for editors and type checkers (a test compares it with the registry).
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ..core import registry


class _Methods(ModuleType):
    """The package as a module in which `grpo` is the method, not the submodule that defines it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType):  # the import system puts a submodule here
            value = getattr(value, name, value)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Methods


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec(f"{__name__}.{name}") is not None:
        import_module(f"{__name__}.{name}")
        return sys.modules[__name__].__dict__[name]
    if name in registry.methods:  # a method that shares another's file
        return registry.methods.get(name)
    raise AttributeError(f"no method is called {name!r}")


def __dir__() -> list[str]:
    return sorted(registry.methods)
