"""The log of a run as tables: metrics by step, held-out figures by evaluation."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, overload

from ..analysis.curves import curves_of
from ..core.errors import BadValue, unknown

NOT_METRICS = ("event", "steps", "first", "seconds")  # of a step's event: what the progress bar reads
SHOWN_ROWS = 10  # of a long table, at each end
# What a terminal's width has room for, in this order.
MAIN = ("reward/mean", "policy/loss", "rollout/length_mean", "policy/entropy_estimate", "policy/approx_kl")
Z = 1.959964  # of a 95 % interval


class MetricsTable(Sequence[dict[str, Any]]):
    """The metrics of a run, one row a step, by the names of the log (docs/metrics.md).

    table[3], table[-1]      a row: name -> value
    table["reward/mean"]     a column: its value at each step, None where a step has none
    table[10:20]             some rows
    table.to_dict(), table.to_pandas()
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.rows = [dict(row) for row in rows]
        self.columns = list(dict.fromkeys(name for row in self.rows for name in row))

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> MetricsTable: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> dict[str, Any] | MetricsTable | list[Any]:
        if isinstance(key, str):
            if key not in self.columns:
                raise unknown("metric of this run", key, self.columns)
            return [row.get(key) for row in self.rows]
        return MetricsTable(self.rows[key]) if isinstance(key, slice) else self.rows[key]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def to_dict(self) -> dict[str, list[Any]]:
        """Name -> the column."""
        return {name: self[name] for name in self.columns}

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with the step as its index. Raises BadValue where pandas is not installed."""
        try:
            pandas = import_module("pandas")
        except ModuleNotFoundError:
            raise BadValue(
                "to_pandas: the package pandas is not installed; pip install pandas, or take to_dict()"
            ) from None
        return pandas.DataFrame(self.rows, columns=self.columns).set_index("step")

    def __repr__(self) -> str:
        main = [name for name in MAIN if name in self.columns] or self.columns[1:6]
        lines = text_table(["step", *main], _ends([[row.get(n) for n in ("step", *main)] for row in self.rows]))
        return f"{lines}\n{len(self.rows)} steps, {len(self.columns)} columns (.columns names them)"

    def _repr_html_(self) -> str:
        return html_table(self.columns, _ends([[row.get(n) for n in self.columns] for row in self.rows]))


def metrics_of(events: Sequence[Mapping[str, Any]]) -> MetricsTable:
    """The metrics that a log holds."""
    return MetricsTable(metrics_row(e) for e in curves_of(events).steps)


def metrics_row(event: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics in the event of a step, with its number first."""
    return {"step": event["step"]} | {k: v for k, v in event.items() if k not in NOT_METRICS}


class Estimate(NamedTuple):
    """A share of right answers: `value` in 0 .. 1 with its 95 % interval, over `questions` with `samples` of each.

    The interval is Wilson's over questions. Of a sampled accuracy it is an upper bound: the mean of several samples of
    a question varies less than one right or wrong answer.
    """

    value: float
    low: float
    high: float
    questions: int
    samples: int = 1

    def __str__(self) -> str:
        of = f"{self.questions} questions" + (f", {self.samples} samples of each" if self.samples > 1 else "")
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f}; {of})"


@dataclass(frozen=True)
class Evaluation:
    """Held-out figures after `step` steps of training; 0: before any.

    greedy   accuracy of greedy answers; None where there is no judge, or nothing was measured
    sampled  accuracy of sampled answers; None where nothing was sampled
    figures  everything that was measured, by name (docs/metrics.md)
    """

    step: int
    greedy: Estimate | None
    sampled: Estimate | None
    figures: Mapping[str, float | None]


class Evaluations(dict[int, Evaluation]):
    """Step -> Evaluation of a run, in order."""

    def _rows(self) -> list[list[Any]]:
        return [[e.step, e.greedy, e.sampled, e.figures.get("reward")] for e in self.values()]

    def __repr__(self) -> str:
        return text_table(["step", "greedy", "sampled", "reward"], self._rows())

    def _repr_html_(self) -> str:
        return html_table(["step", "greedy", "sampled", "reward"], self._rows())


def evaluations_of(events: Iterable[Mapping[str, Any]]) -> Evaluations:
    """The evaluations that a log holds; of a step that was measured twice the last and larger one."""
    found: dict[int, Evaluation] = {}
    for e in events:
        if e["event"] == "eval":
            figures = {k: v for k, v in e.items() if k not in ("event", "step", "questions", "samples")}
            questions, samples = e.get("questions", 0), e.get("samples", 0)
            greedy = _estimate(figures.get("greedy", figures.get("accuracy")), questions)
            sampled = _estimate(figures.get("sampled"), questions, samples)
        elif e["event"] == "final_eval":
            figures, counts = e["figures"], e.get("counts", {})
            greedy = _estimate(figures.get("greedy"), sum(c != "-" for c in counts.get("greedy", "")))
            samples = counts.get("samples", 0)
            sampled = _estimate(figures.get("accuracy"), len(counts.get("questions", ())), samples) if samples else None
        else:
            continue
        found[e["step"]] = Evaluation(e["step"], greedy, sampled, figures)
    return Evaluations(sorted(found.items()))


def _estimate(value: float | None, questions: int, samples: int = 1) -> Estimate | None:
    return None if value is None or not questions else Estimate(value, *wilson(value, questions), questions, samples)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of n: never empty, also where all or none are right.

    >>> [round(v, 3) for v in wilson(0.5, 100)], [round(v, 3) for v in wilson(1.0, 20)]
    ([0.404, 0.596], [0.839, 1.0])
    """
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def shown(value: Any) -> str:
    """A value of a table as text.

    >>> shown(0.123456), shown(None), shown(40), shown(1.5e-7)
    ('0.1235', '', '40', '1.5e-07')
    """
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _ends(rows: list[list[Any]]) -> list[list[Any]]:
    """The first and last rows, with a row of dots between them where some are left out."""
    if len(rows) <= 2 * SHOWN_ROWS:
        return rows
    return [*rows[:SHOWN_ROWS], ["..."] * len(rows[0]), *rows[-SHOWN_ROWS:]]


def text_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as lines of text, columns aligned on the right."""
    cells = [list(columns), *([shown(v) for v in row] for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(columns))]
    return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells)


def html_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as a table of HTML, which scrolls sideways where it is wide."""
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(shown(v))}</td>" for v in row) + "</tr>" for row in rows)
    return f'<div style="overflow-x:auto"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
