"""Text that is not ours on a terminal: without control characters."""

from __future__ import annotations

import unicodedata
from typing import Any

# What changes the order in which a terminal shows characters, so that a line reads as another than it is.
DIRECTION = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def escaped(text: str) -> str:
    r"""A text for a terminal: what would move the cursor, change colours or the direction of writing is written out.

    >>> escaped("a\tb\n\x1b[31mred\u202e")
    'a\tb\n\\x1b[31mred\\u202e'
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _moves(c) else c.encode("unicode_escape").decode() for c in text)


def _moves(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in DIRECTION


def shown_on(stream: Any, text: str) -> str:
    """A text as it is written to a stream: escaped for a terminal, as it is for a file or a pipe."""
    return escaped(text) if stream.isatty() else text
