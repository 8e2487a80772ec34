"""The page of a family: its methods side by side, from a result of `selfteach side-by-side`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import BadValue
from ..model.names import SIZES
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
OF_MEMORY = ("search/needless", "search/missed")  # which rest on what a warm start has shown
ENOUGH = 3  # seeds for an interval


class Row(NamedTuple):
    """A method by one of its programs ("": its own): measure -> mean, 95 % interval and values of its seeds.

    Of fewer than `ENOUGH` seeds there is no interval: two say next to nothing of others.
    """

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
    """A row for every method and program, the most accurate first. A program that asked nothing made no calls.

    The measure `over` is by how much it is more accurate than `against`, the method to which others are compared, on
    the same seed.
    """
    out = list[Row]()
    against = result["methods"].get(result.get("against"), {"seeds": {}})
    others = {seed: run["after"].get("accuracy") for seed, run in against["seeds"].items()}
    for name, method in result["methods"].items():
        runs = list(method["seeds"].values())
        for decoder in decoders(*(r["after"] for r in runs)):
            after = [{m: r["after"].get(figure_name(m, decoder=decoder)) for m in COLUMNS} for r in runs]
            measures = {m: _measured([a[m] for a in after]) for m in COLUMNS}
            measures["start"] = _measured([r["before"].get(figure_name("accuracy", decoder=decoder)) for r in runs])
            own = zip(method["seeds"], after, strict=True)
            pairs = [] if method is against else [(a["accuracy"], others.get(seed)) for seed, a in own]
            measures["over"] = _measured([x - y for x, y in pairs if x is not None and y is not None])
            out.append(Row(name, decoder, measures))
    return sorted(out, key=lambda row: -(row.mean("accuracy") or 0.0))


def _measured(values: Sequence[float | None]) -> dict[str, Any]:
    known = [v for v in values if v is not None]
    found = {**summary(known), "values": known}
    return found if len(known) >= ENOUGH else {**found, "interval": None}


def _shown(measure: str, found: Mapping[str, Any]) -> str:
    """`52.5 [50.1, 55.0]`, of few seeds `52.5 (51.5 to 53.5)`, of one `52.5`."""
    text = formatted_mean(measure, found)
    if found["interval"] or len(found["values"]) < 2:
        return text
    return f"{text} ({' to '.join(formatted(measure, end(found['values'])) for end in (min, max))})"


def tables(result: Mapping[str, Any]) -> list[ReportTable]:
    """The methods with mean and interval (of few seeds: lowest and highest) of each measure and what training took; and
    those apart, with the reason.
    """
    over = {"over": f"over {result['against']}, points"} if result.get("against") else {}
    shown = {m: head for m, head in COLUMNS.items() if is_warm_started(result["model"]) or m not in OF_MEMORY}
    heads = {"start": "EM at the start, %", "accuracy": COLUMNS["accuracy"], **over, **shown}
    body = list[list[str]]()
    for row in rows_of(result):
        runs = result["methods"][row.method]["seeds"].values()
        measured = [_shown(m if m in COLUMNS else "accuracy", row.measures[m]) for m in heads]
        taken = [summary([r[what] for r in runs])["mean"] for what in ("tokens", "seconds")]
        costs = [formatted("", float(value) if isinstance(value, float) else None) for value in taken]
        body.append([row.name, *measured, *costs, str(len(runs))])
    many = any(len(m["seeds"]) >= ENOUGH for m in result["methods"].values())
    spread = "[95 % interval over seeds]" if many else "(lowest to highest of its seeds)"
    columns = ["", *heads.values(), "tokens of training", "seconds", "seeds"]
    out = [ReportTable(f"{result['family']}: mean {spread}", columns, body)]
    if apart := [[name, why] for name, why in {**result["failed"], **result["apart"]}.items()]:
        out.append(ReportTable("not in the table", ["", "why"], apart))
    return out


def draw(result: Mapping[str, Any], file: Path) -> Path:
    """Write accuracy and searches, a line for each method and program: mean, interval, and a small dot for each seed.

    Raises BadValue where matplotlib is not installed.
    """
    rows = rows_of(result)[::-1]
    with plot_style() as plt:
        size = (10.0, 1.2 + 0.24 * len(rows))
        figure, axes = plt.subplots(1, 2, figsize=size, layout="constrained", sharey=True, width_ratios=(2, 1))
        panels = (("accuracy", 100.0, "held-out EM, %"), ("calls", 1.0, "searches of an answer"))
        for axis, (measure, scale, label), colour in zip(axes, panels, COLOURS, strict=False):
            for n, row in enumerate(rows):
                found = row.measures[measure]
                if found["mean"] is None:
                    continue
                values = [scale * v for v in found["values"]]
                low, high = [scale * v for v in found["interval"]] if found["interval"] else (min(values), max(values))
                axis.plot([low, high], [n, n], color=colour, linewidth=1.5, alpha=0.5)
                axis.plot(values, [n] * len(values), ".", color=colour, markersize=3)
                axis.plot([scale * found["mean"]], [n], "o", color=colour, markersize=5)
            axis.set(xlabel=label, xlim=(0.0, None), ylim=(-0.7, len(rows) - 0.3))
            axis.grid(True, axis="both", alpha=0.3)
        axes[0].set_yticks(range(len(rows)), [row.name for row in rows])
        axes[0].set_title(f"{result['family']}: each trained on {result['tokens']:,} sampled tokens")
        return save_figure(figure, file)


def write_page(family: str, papers: Mapping[str, str], result: Mapping[str, Any] | None, file: str | Path) -> Path:
    """Write the page of a family, and where something was measured its picture beside it.

    papers  method -> its paper, of all methods of the family; those without a figure or a reason are named
    Raises OSError where it cannot be written, BadValue where matplotlib is not installed.
    """
    file = Path(file)
    warm = result is not None and is_warm_started(result["model"])
    on = "" if result is None or warm else f" on {result['model']}"
    parts = [f"# {family.partition('_')[0].capitalize()} methods{on}, side by side\n"]
    if result is not None and result["methods"]:
        options = " ".join(f"{k}={v}" for k, v in result["task_options"].items())
        picture = draw(result, file.with_suffix(".png"))
        of_memory = (
            "; needless are searches for what memory answers, missed are answers without a search where memory does not"
            " have them, both per answer"
        )
        parts += [
            f"\nEach is trained on {result['tokens']:,} sampled tokens with its defaults, and batch and rate of the"
            f" regime `{result['regime']}`, from {_start(result['model'])}; then all"
            f" answer the same {result['questions']} held-out questions, {result['samples']} times each. A seed decides"
            f"{' warm start,' if warm else ''} run and questions; brackets hold the 95 %"
            f" interval over {ENOUGH} or more of them,"
            f" parentheses the lowest and the highest of fewer. EM is exact match"
            f"{of_memory if warm else ''}."
            " Differences are of runs with the same seed, and their intervals are not corrected for being many."
            " Rates were not tuned for each method.\n\n"
            f"The task is `{result['task']}` with `{options}`, the model `{result['model']}`.\n\n"
        ]
        first, *others = tables(result)
        rows = [[linked(row[0], papers), *row[1:]] for row in first.rows]
        parts += [markdown(first.columns, rows), f"\n![accuracy and searches of each method]({picture.name})\n"]
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


def is_warm_started(model: str) -> bool:
    """Whether the runs of a model begin with a warm start on the task's demonstrations, so that what it holds is known:
    one that is pre-trained holds other facts than the task withholds.
    """
    return model in SIZES


def _start(model: str) -> str:
    """What the runs of a model begin with."""
    if is_warm_started(model):
        return "a warm start of its own demonstrations of the same questions"
    return "the model as it is, which two examples in its prompt show the form of an answer"


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
