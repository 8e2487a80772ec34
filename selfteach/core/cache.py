"""The cache folder, for what can be computed again: warm starts, kernels, indices."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from pathlib import Path

from .errors import SelfteachError

LEFT_OVER = 24 * 3600.0  # seconds after which what is temporary belongs to no process any more


def cache_root() -> Path:
    """$SELFTEACH_CACHE, or ~/.cache/selfteach. Raises SelfteachError where the user has no home."""
    try:
        return Path(os.environ.get("SELFTEACH_CACHE") or "~/.cache/selfteach").expanduser()
    except RuntimeError:
        raise SelfteachError(
            "cache: this user has no home folder; set SELFTEACH_CACHE to a folder for what can be computed again"
        ) from None


def cache_folder(*parts: str) -> Path:
    """A folder of the cache, made if it is not there: $SELFTEACH_CACHE, or ~/.cache/selfteach.

    What is temporary in it has a name that begins with "."; what a killed process left of that is removed after a day.

    Raises SelfteachError where it cannot be made.
    """
    folder = cache_root().joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SelfteachError(
            f"{folder}: the cache cannot be made ({error.strerror or error}); set SELFTEACH_CACHE to a folder that"
            " can be written to"
        ) from error
    if parts:
        remove_left_over(folder)
    return folder


def writable_cache(*parts: str) -> Path:
    """A folder of the cache that can be written to. Raises SelfteachError where it cannot: before any work for it."""
    folder = cache_folder(*parts)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SelfteachError(
            f"{folder}: the cache cannot be written to; set SELFTEACH_CACHE to a folder that can be written to"
        )
    return folder


def private_folder(name: str) -> Path:
    """A folder of the cache that only this user can read or write, created where it is missing.

    Raises PermissionError where it belongs to another user, since what is in it is loaded and run, or says what may be.
    """
    folder = cache_folder() / name
    folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    status = folder.stat()
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise PermissionError(f"error: {folder} belongs to another user; set SELFTEACH_CACHE to a folder of your own")
    if stat.S_IMODE(status.st_mode) != stat.S_IRWXU:
        folder.chmod(stat.S_IRWXU)
    remove_left_over(folder)
    return folder


def remove_left_over(folder: Path) -> None:
    """Remove what is temporary in a folder (".NAME") and older than a day."""
    for temporary in folder.glob(".*"):
        with contextlib.suppress(OSError):  # another process removes it too, or may not be disturbed
            if time.time() - temporary.lstat().st_mtime > LEFT_OVER:
                shutil.rmtree(temporary) if temporary.is_dir() and not temporary.is_symlink() else temporary.unlink()
