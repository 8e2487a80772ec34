"""The cache folder, for what can be computed again: warm starts, kernels, indices."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

LEFT_OVER = 24 * 3600.0  # seconds after which what is temporary belongs to no process any more


def cache_folder(*parts: str) -> Path:
    """A folder of the cache, made if it is not there: $SELFTEACH_CACHE, or ~/.cache/selfteach.

    What is temporary in it has a name that begins with "."; what a killed process left of that is removed after a day.

    Raises OSError where it cannot be made.
    """
    root = Path(os.environ.get("SELFTEACH_CACHE") or "~/.cache/selfteach").expanduser()
    folder = root.joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    if parts:
        remove_left_over(folder)
    return folder


def remove_left_over(folder: Path) -> None:
    """Remove what is temporary in a folder (".NAME") and older than a day."""
    for temporary in folder.glob(".*"):
        with contextlib.suppress(OSError):  # another process removes it too, or may not be disturbed
            if time.time() - temporary.lstat().st_mtime > LEFT_OVER:
                shutil.rmtree(temporary) if temporary.is_dir() and not temporary.is_symlink() else temporary.unlink()
