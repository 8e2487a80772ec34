"""Heavy libraries, imported when something of them is first used, so that listing what there is does not wait for them.

from ..core.lazy import torch
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


class LazyModule(ModuleType):
    """A module that is imported at the first use of one of its names."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


if TYPE_CHECKING:
    import torch
else:
    torch = LazyModule("torch")

__all__ = ["LazyModule", "torch"]
