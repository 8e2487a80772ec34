"""Where built things that can be built again are kept on disk."""

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
