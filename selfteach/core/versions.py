"""Versions of what is installed, this library's own too."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

UNKNOWN = "0+unknown"


@cache
def version(name: str) -> str:
    """The installed version of a package; UNKNOWN where it is not installed."""
    try:
        return installed(name)
    except PackageNotFoundError:
        return UNKNOWN
