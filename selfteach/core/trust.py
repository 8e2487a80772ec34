"""Which Python files of a user may be run: those that the user named, and those whose content this user has run before.

A run's config.json names files that are executed when it is read, and a run folder may come from anybody. So a file
that a configuration names is refused unless this user has used a file of the very same content on this machine, or
says `--trust` now. The record is a folder of the cache that only this user can write to: one file by content hash.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path

from .cache import private_folder
from .errors import BadValue, SelfteachError, quoted

RECORD = "trusted"  # the folder of the cache


def check(file: Path, content: bytes, named_by: Path | str, trust: bool) -> None:
    """Raise BadValue where a file that a configuration names must not be run."""
    if not (trust or is_known(content)):
        raise BadValue(
            f"{named_by}: names {quoted(file)}, which is Python code that this user has not run here before (or it was"
            " edited since); read it, then give --trust (in Python trust=True)"
        )


def is_known(content: bytes) -> bool:
    """Whether this user has run a file of this content."""
    with contextlib.suppress(SelfteachError, OSError):
        return (private_folder(RECORD) / _name(content)).is_file()
    return False


def remember(file: Path, content: bytes) -> None:
    """Record that this user has run a file of this content; where the cache cannot be written to, nothing is."""
    with contextlib.suppress(SelfteachError, OSError):
        record = private_folder(RECORD) / _name(content)
        if not record.exists():
            record.write_text(f"{file}\n", encoding="utf-8")


def remember_all(files: Iterable[str]) -> None:
    """Record the files of a configuration that the user made, or that was checked as it was read."""
    for file in files:
        with contextlib.suppress(OSError):
            remember(Path(file), Path(file).read_bytes())


def _name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
