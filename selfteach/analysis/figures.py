"""Names of a run's figures, and the tables that show them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core.claim import is_fraction as is_fraction

Figures = Mapping[str, float | None]


class Name(NamedTuple):
    """The parts of a figure's name `accuracy/hops=2+search`; tag "": all tasks, decoder "": the own program. What
    follows the slash of `search/recall` is no tag, which has a value.
    """

    measure: str
    tag: str
    decoder: str


class ReportTable(NamedTuple):
    """A table as text, ready to print."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def parse(name: str) -> Name:
    """The parts of a figure's name.

    >>> parse("accuracy/hops=2+search")
    Name(measure='accuracy', tag='hops=2', decoder='search')
    """
    name, _, decoder = name.partition("+")
    measure, _, tag = name.partition("/")
    return Name(measure, tag, decoder) if "=" in tag else Name(name, "", decoder)


def formatted(measure: str, value: float | None) -> str:
    """A figure as text: fractions in per cent with one decimal, others with about three digits; "-" where unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    if is_fraction(measure):
        return f"{100 * value:.1f}"
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{decimals}f}"


def formatted_change(measure: str, before: float | None, after: float | None) -> str:
    """`31.0 → 52.5`, or one of them alone where the other was not measured."""
    if before is None:
        return formatted(measure, after)
    return (
        formatted(measure, before) if after is None else f"{formatted(measure, before)} → {formatted(measure, after)}"
    )


def decoders(*figures: Figures) -> list[str]:
    """The decoders in the names of figures; first "", the method's own program."""
    return list(dict.fromkeys(["", *(parse(n).decoder for f in figures for n in f)]))


def tags(*figures: Figures) -> list[str]:
    """The tags in the names of figures (hops=1, hops=2 ...), in order."""
    return sorted({parse(n).tag for f in figures for n in f} - {""})


def tag_kinds(*figures: Figures) -> list[str]:
    """The keys of these tags: hops, terms ..."""
    return sorted({t.partition("=")[0] for t in tags(*figures)})


def pass_at_ks(*figures: Figures) -> list[int]:
    """The k of every pass@k, in order."""
    return sorted({int(parse(n).measure[5:]) for f in figures for n in f if n.startswith("pass@")})


def figure_name(measure: str, tag: str = "", decoder: str = "") -> str:
    """The name of a figure, the inverse of `parse`."""
    return measure + (f"/{tag}" if tag else "") + (f"+{decoder}" if decoder else "")


def _has_content(measure: str, values: Sequence[float | None]) -> bool:
    """Whether a measure is worth a column: it was taken, and, of calls, any were made."""
    known = [v for v in values if v is not None]
    return bool(known) and (measure != "calls" or any(known))


def tables(before: Figures, after: Figures) -> list[ReportTable]:
    """A run's figures as tables: by decoder; pass@k; and accuracy by each kind of tag (number of hops ...)."""

    def cell(measure: str, tag: str = "", decoder: str = "") -> str:
        name = figure_name(measure, tag, decoder)
        return formatted_change(measure, before.get(name), after.get(name))

    out: list[ReportTable] = []
    programs = decoders(before, after)
    label = {d: f"with {d.replace('_', ' ')}" if d else "own program" for d in programs}
    named = {
        "reward_greedy": "reward, greedy",
        "reward": "reward, sampled",
        "greedy": "greedy %",
        "accuracy": "sampled %",
        "f1_greedy": "F1, greedy",
        "f1": "F1, sampled",
        "maj": "majority %",
        "length": "tokens",
        "calls": "calls",
        "re_rendered": "re_rendered",
    }
    columns = [
        c
        for c in named
        if _has_content(c, [f.get(figure_name(c, decoder=d)) for d in programs for f in (before, after)])
    ]
    out.append(
        ReportTable(
            "held-out accuracy" if "greedy" in columns or "accuracy" in columns else "held out",
            ["", *(named[c] for c in columns)],
            [[label[d], *(cell(c, decoder=d) for c in columns)] for d in programs],
        )
    )
    searched = sorted({m for f in (before, after) for n in f if (m := parse(n).measure).startswith("search/")})
    if searched:
        asked = [d for d in programs if any(figure_name(m, "", d) in f for m in searched for f in (before, after))]
        columns = ["", *(m.removeprefix("search/") for m in searched)]
        rows = [[label[d], *(cell(m, decoder=d) for m in searched)] for d in asked]
        out.append(ReportTable("searches of an answer", columns, rows))
    ks = pass_at_ks(before, after)
    if ks:
        when = (("before", before), ("after" if before else "now", after))
        rows = [
            [
                name + (f", {label[d]}" if d else ""),
                *(formatted("pass@", f.get(figure_name(f"pass@{k}", "", d))) for k in ks),
            ]
            for d in programs
            for name, f in when
            if figure_name(f"pass@{ks[-1]}", decoder=d) in f  # decoders rarely have as many samples
        ]
        out.append(ReportTable("pass@k, %", ["", *(f"k={k}" for k in ks)], rows))
    for kind in tag_kinds(before, after):
        by = [t for t in tags(before, after) if t.startswith(kind + "=")]
        heads = [t.replace("=", " ") for t in by]
        measure = "accuracy" if any(figure_name("accuracy", t) in f for t in by for f in (before, after)) else "reward"
        out.append(
            ReportTable(
                f"sampled accuracy by {kind}, %" if measure == "accuracy" else f"sampled reward by {kind}",
                ["", *heads],
                [[label[d], *(cell(measure, t, d) for t in by)] for d in programs],
            )
        )
    return out


def failed_figures(figures: Figures) -> str:
    """The episodes that failed and the answers without a score, in a line by program; "" where there are none.

    >>> failed_figures({"failed": 3.0, "unscored": 0.0, "failed+search": 0.0, "unscored+search": 2.0})
    'own program: 3 episodes failed; with search: 2 answers have no score'
    """
    out: list[str] = []
    for decoder in decoders(figures):
        failed, unscored = (figures.get(figure_name(n, decoder=decoder)) or 0 for n in ("failed", "unscored"))
        words = [f"{failed:.0f} episodes failed"] * bool(failed)
        words += [f"{unscored:.0f} answers have no score"] * bool(unscored)
        if words:
            out.append((f"with {decoder}" if decoder else "own program") + f": {', '.join(words)}")
    return "; ".join(out)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(columns), "|" + " --- |" * len(columns), *map(line, rows)]) + "\n"


def counted(n: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "step"), counted(60, "step")
    ('1 step', '60 steps')
    """
    return f"{n} {what}{'s' if n != 1 else ''}"


def section_link(name: str) -> str:
    """A name as a link to its section of the same page, or METHOD.EXPERIMENT to that of the page of a method's own.

    >>> section_link("grpo"), section_link("dapo.many_ways")
    ('[`grpo`](#grpo)', '[`dapo.many_ways`](ledger/dapo.md#many_ways)')
    """
    method, _, experiment = name.partition(".")
    return f"[`{name}`](ledger/{method}.md#{experiment})" if experiment else f"[`{name}`](#{name})"
