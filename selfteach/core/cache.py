"""The cache folder, for what can be computed again: warm starts, kernels, indices."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(*parts: str) -> Path:
    """A folder of the cache, made if it is not there: $SELFTEACH_CACHE, or ~/.cache/selfteach.

    Raises OSError where it cannot be made.
    """
    root = Path(os.environ.get("SELFTEACH_CACHE") or "~/.cache/selfteach").expanduser()
    folder = root.joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
