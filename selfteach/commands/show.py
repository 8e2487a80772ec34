"""Results for people: tables on stdout, and how to go on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..analysis.figures import Table, tables


def show(found: Iterable[Table]) -> None:
    """Print tables; on a terminal with a little colour."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    plain = Console(highlight=False)
    # a pipe or a file has no width to fit
    console = plain if plain.is_terminal else Console(highlight=False, width=150)
    for table in found:
        grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
        for n, column in enumerate(table.columns):
            numbers = n > 0 and all(row[n][:1] in "+-0123456789" for row in table.rows)
            grid.add_column(column, justify="right" if numbers else "left", overflow="fold", no_wrap=numbers)
        for row in table.rows:
            grid.add_row(*(Text(cell) for cell in row))
        if table.title:
            console.print(Text(table.title, style="bold"))
        console.print(grid)


def show_run(run: Any, picture: Path | None) -> None:
    """What a run measured before and after, where its files lie, and how to go on."""
    figures = run.figures
    print()
    show(tables(figures.get("before", {}), figures.get("after", {})))
    training = time_of(figures.get("seconds", {}).get("training"))
    print(f"{figures.get('steps')} steps, {figures.get('tokens') or 0:,} tokens sampled, training {training} of {time_of(run.seconds)}")
    print(f"model   {run.model}")
    if (run.model / "adapter").is_dir():
        print(f"adapter {run.model}/adapter")
    print(f"log     {run.folder}/log")
    if picture:
        print(f"curves  {picture}")
    plugged = next((n for n in _ways(run) if n == "search"), None)
    print(f"\nmeasure again:  selfteach eval {run.folder}" + (" --tool search" if plugged else ""))
    print(f"another seed:   selfteach train --config {run.folder}/config.json --seed 1")


def _ways(run: Any) -> list[str]:
    from ..analysis.figures import ways

    return ways(run.figures.get("after", {}))


def time_of(seconds: float | None) -> str:
    """Seconds as people say them: 48 s, 2 min 05 s, 1 h 10 min.

    >>> time_of(48.2), time_of(125), time_of(4200)
    ('48 s', '2 min 05 s', '1 h 10 min')
    """
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
