"""A run's log as the columns that the page draws: metrics by step, held-out figures with intervals, what each means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..api.tables import NOT_METRICS, evaluations_of
from ..loop.log import EventPage, read_events_after, read_events_between
from ..loop.metrics import FIGURES, METRICS, metric_of

READ_BYTES = 6 << 20  # of a log at a time; a larger one is sampled
MOST_STEPS = 4000  # rows that are sent; of more every k-th


def curve_page(run: Path, offset: int = 0, mark: str = "", steps: tuple[int, int] | None = None) -> dict[str, Any]:
    """What is new in a run's log after (offset, mark) of an earlier page, or the steps first to last of it, as columns.

    metrics   name -> [steps, values];  evals  name -> [steps, values, lows, highs], lows None without an interval
    about     name -> [meaning, unit, healthy] of both
    every     1, or k where only every k-th step is in it; sampled: the log is too large, and parts of it were read
    """
    log = run / "log"
    page = read_events_between(log, *steps, READ_BYTES) if steps else read_events_after(log, offset, mark, READ_BYTES)
    rows = {e["step"]: e for e in page.events if e["event"] == "step" and isinstance(e["step"], int)}
    kept, every = _thinned([rows[s] for s in sorted(rows)])
    metrics = _columns(kept)
    evals = _evaluations(page)
    about = {n: _about(n, METRICS) for n in metrics} | {n: _about(n.removeprefix("eval/"), FIGURES) for n in evals}
    return {
        "offset": page.offset,
        "mark": page.mark,
        "size": page.size,
        "anew": page.anew,
        "sampled": page.sampled,
        "every": every,
        "rows": len(rows),
        "last": max(rows, default=None),
        "metrics": metrics,
        "evals": evals,
        "about": about,
        "stages": _stages(kept),
    }


def _thinned(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    every = -(-len(rows) // MOST_STEPS) or 1
    return (rows if every == 1 else [*rows[:-1:every], rows[-1]]), every


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    out: dict[str, list[list[Any]]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in NOT_METRICS and name != "step" and isinstance(value, int | float):
                steps, values = out.setdefault(name, [[], []])
                steps.append(row["step"])
                values.append(rounded(value))
    return out


def _evaluations(page: EventPage) -> dict[str, list[list[Any]]]:
    out: dict[str, list[list[Any]]] = {}

    def add(name: str, step: int, value: Any, low: float | None = None, high: float | None = None) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            columns = out.setdefault("eval/" + name, [[], [], [], []])
            for column, v in zip(columns, (step, value, low, high), strict=True):
                column.append(rounded(v))

    for step, e in evaluations_of(page.events).items():
        for name, known in (("greedy", e.greedy), ("sampled", e.sampled)):
            if known is not None:
                add(name, step, known.value, known.low, known.high)
        for name, value in e.figures.items():
            if name not in ("greedy", "sampled", "accuracy"):
                add(name, step, value)
    return out


def _about(name: str, table: Mapping[str, Any]) -> list[str]:
    found = metric_of(name.partition("+")[0], table)
    return [found.meaning, found.unit, found.healthy] if found else ["", "", ""]


def _stages(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
    """(first step, name) of the stages."""
    out: list[tuple[int, str]] = []
    for row in rows:
        name = str(row.get("stage", ""))
        if name and (not out or out[-1][1] != name):
            out.append((row["step"], name))
    return out


def rounded(value: Any) -> Any:
    """A number with six digits, for a page that draws it; None for one that is not finite.

    >>> rounded(0.123456789), rounded(float("nan")), rounded(1234567)
    (0.123457, None, 1234567)
    """
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
