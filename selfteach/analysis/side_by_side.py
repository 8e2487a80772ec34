"""The page of a family: its methods side by side, from a result of `selfteach side-by-side`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import BadValue
from .comparison import formatted_mean
from .curves import COLOURS, plot_style, save_figure
from .figures import ReportTable, decoders, figure_name, formatted, markdown
from .statistics import summary

COLUMNS = {
    "accuracy": "EM, %",
    "f1": "F1",
    "calls": "searches",
    "length": "tokens",
    "search/needless": "needless",
    "search/missed": "missed",
}


class Row(NamedTuple):
    """A method by one of its programs ("": its own): measure -> mean and 95 % interval over seeds."""

    method: str
    decoder: str
    measures: Mapping[str, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """As it stands in the table."""
        return self.method + (f" with {self.decoder}" if self.decoder else "")

    def mean(self, measure: str) -> float | None:
        """The mean over seeds; None where it is not known."""
        return self.measures[measure]["mean"]


def rows_of(result: Mapping[str, Any]) -> list[Row]:
    """A row for every method and program, the most accurate first. A program that asked nothing made no calls."""
    out = list[Row]()
    for name, method in result["methods"].items():
        runs = list(method["seeds"].values())
        for decoder in decoders(*(r["after"] for r in runs)):
            after = [{m: r["after"].get(figure_name(m, decoder=decoder)) for m in COLUMNS} for r in runs]
            measures = {m: summary([a[m] for a in after]) for m in COLUMNS}
            measures["start"] = summary([r["before"].get(figure_name("accuracy", decoder=decoder)) for r in runs])
            out.append(Row(name, decoder, measures))
    return sorted(out, key=lambda row: -(row.mean("accuracy") or 0.0))


def tables(result: Mapping[str, Any]) -> list[ReportTable]:
    """The methods with mean and interval of each measure and what training took; and those apart, with the reason."""
    body = list[list[str]]()
    for row in rows_of(result):
        runs = result["methods"][row.method]["seeds"].values()
        measured = [formatted_mean(m, row.measures[m]) for m in COLUMNS]
        taken = [summary([r[what] for r in runs])["mean"] for what in ("tokens", "seconds")]
        costs = [formatted("", float(value) if isinstance(value, float) else None) for value in taken]
        body.append([row.name, formatted_mean("accuracy", row.measures["start"]), *measured, *costs, str(len(runs))])
    heads = ["", "EM at the start, %", *COLUMNS.values(), "tokens of training", "seconds", "seeds"]
    out = [ReportTable(f"{result['family']}: mean [95 % interval over seeds]", heads, body)]
    if apart := [[name, why] for name, why in {**result["failed"], **result["apart"]}.items()]:
        out.append(ReportTable("not in the table", ["", "why"], apart))
    return out


def draw(result: Mapping[str, Any], file: Path) -> Path:
    """Write accuracy against searches, a point for each method and program with its intervals.

    Raises BadValue where matplotlib is not installed.
    """
    with plot_style() as plt:
        figure, axis = plt.subplots(figsize=(10.0, 6.0), layout="constrained")
        for n, row in enumerate(rows_of(result)):
            x, y = row.mean("calls"), row.mean("accuracy")
            if x is None or y is None:
                continue
            colour = COLOURS[n % len(COLOURS)]
            errors = [_reach(row.measures[m]) for m in ("calls", "accuracy")]
            axis.errorbar([x], [100 * y], [[100 * errors[1]]], [[errors[0]]], "o", color=colour, alpha=0.8, linewidth=1)
            axis.annotate(row.name, (x, 100 * y), xytext=(4, 4), textcoords="offset points", fontsize=7, color=colour)
        axis.set(xlabel="searches of an answer", ylabel="held-out EM, %")
        axis.set_title(f"{result['family']}: each trained on {result['tokens']:,} sampled tokens")
        return save_figure(figure, file)


def _reach(found: Mapping[str, Any]) -> float:
    return found["interval"][1] - found["mean"] if found["interval"] else 0.0


def write_page(family: str, papers: Mapping[str, str], result: Mapping[str, Any] | None, file: str | Path) -> Path:
    """Write the page of a family, and where something was measured its picture beside it.

    papers  method -> its paper, of all methods of the family; those without a figure or a reason are named
    Raises OSError where it cannot be written, BadValue where matplotlib is not installed.
    """
    file = Path(file)
    parts = [f"# The methods of {family}, side by side\n"]
    if result is not None and result["methods"]:
        options = " ".join(f"{k}={v}" for k, v in result["task_options"].items())
        picture = draw(result, file.with_suffix(".png"))
        parts += [
            f"\nEach is trained on {result['tokens']:,} sampled tokens with its defaults, and batch and rate of the"
            f" regime `{result['regime']}`, from a warm start of its own demonstrations of the same questions; then all"
            f" answer the same {result['questions']} held-out questions, {result['samples']} times each. A seed decides"
            " warm start, run and questions. EM is exact match; needless are searches for what memory answers, missed"
            " are answers without a search where memory does not have them, both per answer. Rates were not tuned for"
            f" each method.\n\nThe task is `{result['task']}` with `{options}`, the model `{result['model']}`.\n\n"
        ]
        first, *others = tables(result)
        rows = [[linked(row[0], papers), *row[1:]] for row in first.rows]
        parts += [markdown(first.columns, rows), f"\n![accuracy against searches]({picture.name})\n"]
        for table in others:
            parts += [f"\n## {table.title.capitalize()}\n\n", markdown(table.columns, table.rows)]
    known = {*result["methods"], *result["apart"]} if result is not None else set[str]()
    if missing := [name for name in papers if name not in known]:
        parts.append(f"\nNot measured yet: {', '.join(linked(name, papers) for name in missing)}.\n")
    parts.append(
        f"\nMeasured by `selfteach side-by-side {family}`; this page is made by `selfteach side-by-side {family} --page"
        f" docs/{file.name}`.\n"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(parts), encoding="utf-8")
    return file


def linked(row: str, papers: Mapping[str, str]) -> str:
    """A row's name with a link to its method's paper, where that is on arXiv.

    >>> linked("ssrl with search", {"ssrl": "2508.10874"})
    '[ssrl](https://arxiv.org/abs/2508.10874) with search'
    """
    name, _, more = row.partition(" ")
    paper = papers.get(name, "")
    link = f"[{name}](https://arxiv.org/abs/{paper})" if re.fullmatch(r"\d{4}\.\d{4,5}", paper) else name
    return f"{link} {more}".strip()


def read_result(folder: str | Path, family: str) -> dict[str, Any] | None:
    """The result of a family in a folder; None where there is none. Raises BadValue for a file that is none."""
    file = Path(folder) / f"{family}.json"
    if not file.is_file():
        return None
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        if result["family"] != family or not {"methods", "apart", "failed"} <= result.keys():
            raise ValueError
    except (ValueError, TypeError, KeyError) as error:
        raise BadValue(f"{file}: is no result of side-by-side {family}; give the folder that it wrote to") from error
    return result
