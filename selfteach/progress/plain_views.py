"""Views without a panel: plain lines, live bars on a terminal, a notebook's cell."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TextIO, cast

from .view import Event, format_seconds


@dataclass
class Lines:
    """A view of plain lines: the first and last of each bar, and one every few seconds."""

    stream: TextIO
    every: float = 5.0
    clock: Callable[[], float] = time.monotonic
    begun: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    last_shown: float = float("-inf")

    def line(self, text: str) -> None:
        """Print a line."""
        print(text, file=self.stream, flush=True)

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        """Print a line where it is the first, the last, or due."""
        now = self.clock()
        began, first = self.begun.setdefault(name, (now, done))
        if done < total and now - self.last_shown < self.every:
            return
        self.last_shown = now
        left = (
            f", {format_seconds((now - began) / (done - first) * (total - done))} left" if first < done < total else ""
        )
        if done >= total:
            del self.begun[name]
        self.line(f"{name} {done:,}/{total:,}{left}{': ' + note if note else ''}")

    def update(self, event: Event) -> bool:
        """Nothing is shown but lines and bars."""
        return False

    def close(self) -> None:
        """Nothing is left to end."""


class Bars:
    """A view of live bars by rich, at most one at a time; a finished one leaves its line."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich
        from rich.table import Column

        columns = (
            TextColumn("{task.description}"),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
        )
        # only the metrics are cut where the terminal is narrow
        figures = TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        self.rich = Rich(
            *columns, figures, console=Console(file=stream, highlight=False), refresh_per_second=4, expand=True
        )
        self.tasks: dict[str, Any] = {}
        self.rich.start()

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        from rich.text import Text

        self.rich.console.print(Text(text))

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        """Draw or move the bar of this name."""
        from rich.markup import escape

        if name not in self.tasks:
            # work done before this call was not timed: without it a resumed run's time left is right
            self.tasks[name] = self.rich.add_task(
                escape(name), total=total, completed=int(done) if done < total else 0, note=""
            )
        self.rich.update(self.tasks[name], completed=done, total=total, note=escape(note))
        if done >= total:
            if "measuring" in name or ": " in name:  # an evaluation, or one run of many: its result is shown elsewhere
                self.rich.remove_task(self.tasks[name])
            del self.tasks[name]

    def update(self, event: Event) -> bool:
        """Nothing is shown but lines and bars."""
        return False

    def close(self) -> None:
        """Take the bars away."""
        self.rich.stop()


class Cell:
    """A view in a notebook's cell: one bar at a time, drawn in its place; lines are printed."""

    def __init__(self, every: float = 0.25, clock: Callable[[], float] = time.monotonic) -> None:
        self.every, self.clock = every, clock
        self.name, self.handle, self.last_shown = "", cast("Any", None), float("-inf")

    def line(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def bar(self, name: str, done: float, total: float, note: str = "") -> None:
        """Draw or move the bar of this name; one that is due, or over."""
        now = self.clock()
        if done < total and name == self.name and now - self.last_shown < self.every:
            return
        if name != self.name and "measuring" not in self.name:
            self.handle = None  # the bar before it stays
        self.name, self.last_shown = name, now
        text = f"{name} {done:,}/{total:,}{': ' + note if note else ''}"
        bar = f'<progress value="{done}" max="{total}"></progress> {html.escape(text)}'
        bundle = {"text/plain": text, "text/html": bar}
        if self.handle is None:
            self.handle = import_module("IPython.display").display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)

    def update(self, event: Event) -> bool:
        """Nothing is shown but lines and bars."""
        return False

    def close(self) -> None:
        """Nothing is left to end."""


def in_notebook() -> bool:
    """Whether this runs in a notebook's kernel, which shows HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


def show_html(html_text: str, text: str) -> None:
    """Show HTML in a notebook; `text` where only that can be shown."""
    import_module("IPython.display").display({"text/html": html_text, "text/plain": text}, raw=True)
