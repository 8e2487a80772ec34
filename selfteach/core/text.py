"""Reading tagged text."""

from __future__ import annotations

import re
from typing import TypeVar

T = TypeVar("T")


def between(text: str, tag: str) -> list[str]:
    """What stands inside each <tag>...</tag>, in order, stripped."""
    return [s.strip() for s in re.findall(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", text, flags=re.DOTALL)]


def last_between(text: str, tag: str, otherwise: T) -> str | T:
    """What stands inside the last <tag>...</tag>, or `otherwise` where there is none."""
    found = between(text, tag)
    return found[-1] if found else otherwise


def step_ends(text: str) -> list[int]:
    """Where the steps of a worked-out text end: after each full stop that ends a sentence, in characters.

    >>> step_ends("<think> 3 + 4 = 7. so 1.5.</think>")
    [18, 26]
    """
    return [m.end() for m in re.finditer(r"\.(?=\s|<|$)", text)]
