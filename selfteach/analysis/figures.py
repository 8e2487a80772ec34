"""The figures of a run by name, and the tables that people read them in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Figures = Mapping[str, float | None]
SHARES = ("accuracy", "greedy", "maj", "pass@", "stderr")


class Name(NamedTuple):
    """`accuracy/hops=2+search` taken apart: the measure, the tag it is restricted to, the way of decoding ("" the run's own)."""

    measure: str
    tag: str
    way: str


class Table(NamedTuple):
    """A table as text, ready to print."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def parse(name: str) -> Name:
    """A figure's name, taken apart.

    >>> parse("accuracy/hops=2+search")
    Name(measure='accuracy', tag='hops=2', way='search')
    """
    name, _, way = name.partition("+")
    measure, _, tag = name.partition("/")
    return Name(measure, tag, way)


def is_share(measure: str) -> bool:
    """True for a measure between 0 and 1 that is shown in per cent."""
    return measure.startswith(SHARES)


def written(measure: str, value: float | None) -> str:
    """A figure as people read it: shares in per cent with one decimal."""
    if value is None or not math.isfinite(value):
        return "-"
    return (
        f"{100 * value:.1f}" if is_share(measure) else f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    )


def moved(measure: str, before: float | None, after: float | None) -> str:
    """`31.0 → 52.5`, or one of them alone where the other was not measured."""
    if before is None:
        return written(measure, after)
    return written(measure, before) if after is None else f"{written(measure, before)} → {written(measure, after)}"


def ways(*figures: Figures) -> list[str]:
    """The ways of decoding that figures speak of, the run's own first."""
    return list(dict.fromkeys(["", *(parse(n).way for f in figures for n in f)]))


def tags(*figures: Figures) -> list[str]:
    """The tags that figures are broken down by, in order."""
    return sorted({parse(n).tag for f in figures for n in f} - {""})


def kinds(*figures: Figures) -> list[str]:
    """The kinds of tags: hops, terms ..."""
    return sorted({t.partition("=")[0] for t in tags(*figures)})


def ks(*figures: Figures) -> list[int]:
    """The k of every pass@k, in order."""
    return sorted({int(parse(n).measure[5:]) for f in figures for n in f if n.startswith("pass@")})


def full(measure: str, tag: str = "", way: str = "") -> str:
    """The name of a figure: what `parse` takes apart."""
    return measure + (f"/{tag}" if tag else "") + (f"+{way}" if way else "")


def _told(measure: str, values: Sequence[float | None]) -> bool:
    """True where a measure says something: it was taken, and calls were made at all."""
    known = [v for v in values if v is not None]
    return bool(known) and (measure != "calls" or any(known))


def tables(before: Figures, after: Figures) -> list[Table]:
    """What a run's figures say, in up to three tables: by way of decoding, pass@k, and by tag (number of hops)."""
    cell = lambda measure, tag="", way="": moved(measure, before.get(full(measure, tag, way)), after.get(full(measure, tag, way)))  # noqa: E731
    out: list[Table] = []
    every = ways(before, after)
    label = {w: f"with {w.replace('_', ' ')}" if w else "own program" for w in every}
    named = {"greedy": "greedy %", "accuracy": "sampled %", "maj": "majority %", "length": "tokens", "calls": "calls", "rewritten": "rewritten"}
    columns = [c for c in named if _told(c, [f.get(full(c, way=w)) for w in every for f in (before, after)])]
    out.append(Table("held-out accuracy", ["", *(named[c] for c in columns)], [[label[w], *(cell(c, way=w) for c in columns)] for w in every]))
    found = ks(before, after)
    if found:
        when = (("before", before), ("after" if before else "now", after))
        rows = [
            [name + (f", {label[w]}" if w else ""), *(written("pass@", f.get(full(f"pass@{k}", way=w))) for k in found)]
            for w in every
            for name, f in when
            if full(f"pass@{found[-1]}", way=w) in f  # other ways are rarely drawn as often
        ]
        out.append(Table("pass@k, %", ["", *(f"k={k}" for k in found)], rows))
    for kind in kinds(before, after):
        by = [t for t in tags(before, after) if t.startswith(kind + "=")]
        heads = [t.replace("=", " ") for t in by]
        out.append(Table(f"sampled accuracy by {kind}, %", ["", *heads], [[label[w], *(cell("accuracy", t, w) for t in by)] for w in every]))
    return out


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    escape = lambda text: str(text).replace("|", "\\|")  # noqa: E731
    lines = ["| " + " | ".join(map(escape, columns)) + " |", "|" + " --- |" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(map(escape, row)) + " |" for row in rows]) + "\n"
