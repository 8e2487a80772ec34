"""Reading tagged text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def between(text: str, tag: str) -> list[str]:
    """What stands inside each <tag>...</tag>, in order, stripped."""
    return [s.strip() for s in re.findall(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", text, flags=re.DOTALL)]


def last_between(text: str, tag: str, otherwise: T) -> str | T:
    """What stands inside the last <tag>...</tag>, or `otherwise` where there is none."""
    found = between(text, tag)
    return found[-1] if found else otherwise


def pieces_before(pieces: Sequence[bytes], place: int) -> int:
    """How many tokens stand before the one that a byte of their text falls in.

    >>> pieces_before([b"1 +", b"", b" 1"], 3)
    2
    """
    return sum(end <= place for end in itertools.accumulate(map(len, pieces)))


def cuts(pieces: Sequence[bytes], pattern: str, before: bool = False) -> list[int]:
    r"""After how many tokens a text is cut at each match of a pattern: behind it (a token that holds its end belongs to
    what comes first), or `before` it (a token that holds its beginning belongs to what follows). Ascending, without the
    text's beginning and end.

    >>> cuts([b"1 +", b" 1", b" = 2", b".", b" so", b" 2"], r"[.](?=\s)")
    [4]
    >>> cuts([b"1", b" wait", b" 2"], r"wait", before=True)
    [1]
    """
    text = b"".join(pieces)
    found = set[int]()
    for match in re.finditer(pattern.encode(), text):
        found.add(pieces_before(pieces, match.start()) if before else pieces_before(pieces, match.end() - 1) + 1)
    return sorted(n for n in found if 0 < n < len(pieces))
