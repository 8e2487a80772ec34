"""Reading files that somebody else made: a model's JSON and text, as one line of error or as what they should be.

Whatever a path leads to (a pipe, a device, a folder, a file of gigabytes, other bytes than UTF-8, JSON that is nested
without end) is found out here, before it is read or parsed.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..core.errors import BadCheckpoint
from ..core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

MOST_BYTES = 1 << 26  # of a JSON file or a text: 64 MB
MOST_TOKENIZER = 1 << 29  # bytes of a tokenizer.json: 512 MB
DEEPEST = 100  # brackets within brackets
STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
BRACKET = re.compile(r"[\[\]{}]")
REMEDY = "mend the file, or download it again"


def exists(file: Path) -> bool:
    """Whether there is something of that name, of whatever kind: what is no file is an error, not an absence."""
    return os.path.lexists(file)


def check_regular(file: Path, most: int = MOST_BYTES) -> int:
    """The size of a regular file in bytes. Raises BadCheckpoint for anything else, and for one above `most`.

    Raises FileNotFoundError where there is nothing.
    """
    try:
        status = file.stat()
    except FileNotFoundError:
        if exists(file):
            raise BadCheckpoint(f"{file}: is a link that leads nowhere; {REMEDY}") from None
        raise
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from None
    if not stat.S_ISREG(status.st_mode):
        kind = "folder" if stat.S_ISDIR(status.st_mode) else "pipe, device or socket"
        raise BadCheckpoint(f"{file}: is a {kind}, not a file; {REMEDY}")
    if status.st_size > most:
        raise BadCheckpoint(f"{file}: has {status.st_size} bytes, and such a file at most {most}; {REMEDY}")
    return status.st_size


def utf8_text(file: Path, most: int = MOST_BYTES) -> str:
    """The text of a file in UTF-8. Raises BadCheckpoint as `check_regular` does, and for other bytes.

    Raises FileNotFoundError where there is nothing.
    """
    check_regular(file, most)
    try:
        with file.open("rb") as f:
            content = f.read(most + 1)  # it may grow
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadCheckpoint(f"{file}: is no text in UTF-8 (byte {error.start}); {REMEDY}") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable(file, error) from None


def read_json(file: Path, most: int = MOST_BYTES) -> dict[str, Any]:
    """The object that a JSON file holds. Raises BadCheckpoint where it holds none, FileNotFoundError as `utf8_text`."""
    text = utf8_text(file, most)
    depth = deepest = 0
    if text.count("[") + text.count("{") > DEEPEST:
        for bracket in BRACKET.finditer(STRING.sub('""', text)):
            depth += 1 if bracket[0] in "[{" else -1
            deepest = max(deepest, depth)
    if deepest > DEEPEST:
        raise BadCheckpoint(f"{file}: is nested more than {DEEPEST} deep; {REMEDY}")
    try:
        data: Any = json.loads(text)
        json.dumps(data, ensure_ascii=False).encode()  # half a character can be written in JSON, and nowhere else
    except (ValueError, RecursionError) as error:
        line = " ".join(str(error).split())[:120]
        raise BadCheckpoint(f"{file}: not JSON ({line}); {REMEDY}") from None
    if not isinstance(data, Mapping):
        raise BadCheckpoint(f"{file}: should hold an object; {REMEDY}")
    return cast("dict[str, Any]", data)


def check_finite(file: Path, name: str, tensor: Tensor) -> Tensor:
    """The tensor. Raises BadCheckpoint where a value of it is NaN or infinite. The cost is that of one sum."""
    if tensor.is_floating_point() and not torch.isfinite(tensor.sum(dtype=torch.float32)):
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:  # else only the sum was too large
            raise BadCheckpoint(
                f"{file}: tensor {name} has {bad} values of {tensor.numel()} that are not finite (NaN or infinite): the"
                " model is broken; download it again, or take an earlier checkpoint"
            )
    return tensor


def _unreadable(file: Path, error: Exception) -> BadCheckpoint:
    return BadCheckpoint(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error}); {REMEDY}")
