"""Caches of a test's own."""

from __future__ import annotations

import os
from pathlib import Path


def own_cache(folder: Path) -> Path:
    """A cache in a folder, empty but for kernels: those are compiled once for all tests."""
    (folder / "cache").mkdir(exist_ok=True)
    kernels = folder / "cache" / "kernels"
    if not kernels.exists():
        kernels.symlink_to((Path(os.environ["SELFTEACH_CACHE"]) / "kernels").resolve())
    return folder / "cache"
