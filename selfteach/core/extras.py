"""Packages that only some parts need: imported where used, and named with their extra where they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import BadValue


def optional(module: str, extra: str, what: str) -> Any:
    """A module of a package that comes with an extra of selfteach.

    module: its dotted name. what: the part that needs it, for the message. Raises BadValue that says which extra to
    install.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise BadValue(f"{what}: the package {error.name} is not installed; pip install 'selfteach[{extra}]'") from None
