"""How progress is shown: what each view can do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

Event = Mapping[str, Any]


class View(Protocol):
    """How progress is shown."""

    def line(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        """Show how far something long is; it is over when done = total."""
        ...

    def update(self, event: Event) -> bool:
        """Take an event; True where the view shows it in its own way, so that no line or bar is to be made of it."""
        ...

    def close(self) -> None:
        """End the display."""
        ...


def format_seconds(seconds: float | None) -> str:
    """Seconds as text: 48 s, 2 min 05 s, 1 h 10 min.

    >>> format_seconds(48.2), format_seconds(125), format_seconds(4200)
    ('48 s', '2 min 05 s', '1 h 10 min')
    """
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )
