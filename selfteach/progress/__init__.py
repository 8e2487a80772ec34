"""Progress of a run from its events, on stderr: a live panel or bars on a terminal, plain lines every few seconds
elsewhere; in a notebook in the cell.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

from .observer import Progress, step_summary
from .plain_views import Bars, Cell, Lines, in_notebook, show_html
from .view import View, format_seconds

__all__ = [
    "Bars",
    "Cell",
    "Lines",
    "Progress",
    "View",
    "format_seconds",
    "in_notebook",
    "show_html",
    "show_progress",
    "step_summary",
]


@contextmanager
def show_progress(stream: TextIO | None = None, panel: bool = False) -> Generator[Progress]:
    """An observer that shows the progress of runs until the block ends; on stderr, or in a notebook's cell.

    panel  of one run: on a terminal a panel with its curves, rollouts and warnings, in place of bars
    """
    view = view_on(stream, panel)
    try:
        yield Progress(view)
    finally:
        view.close()


def view_on(stream: TextIO | None, panel: bool) -> View:
    """The view that suits a stream; None: stderr, or the notebook that this runs in."""
    to = sys.stderr if stream is None else stream
    if stream is None and in_notebook():
        return Cell()
    if not to.isatty() or os.environ.get("TERM", "") in ("", "dumb", "unknown"):  # which cannot move their cursor
        return Lines(to)
    if not panel:
        return Bars(to)
    from .panel import Panel

    return Panel(to)
