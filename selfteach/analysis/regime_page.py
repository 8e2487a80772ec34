"""The page of regimes: what each is for, and what was measured in it, with its curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.regime import Regime
from .claim_curves import draw_band
from .claim_section import formatted_cost, formatted_effect
from .curves import BEFORE_COLOUR, COLOURS, plot_style, save_figure
from .figures import ReportTable, counted, formatted, formatted_change, markdown, section_link
from .regime_evidence import BETTER, GAIN, RISE, status

HEAD = f"""# Regimes

Where claims are measured: each a task with its options, a model, a warm start, a budget and a tuned baseline, under one
name. A regime is admitted with evidence from tuning seeds (0 to 99), and claims are reported on others. The rule: with
at least eight seeds the baseline raises greedy and sampled accuracy by {100 * GAIN:g} points (or shows the failure that
the regime is for); no value that its search tried is better by more than {100 * BETTER:g} points (of the reward, where
what is rewarded is not what is right, and to learn nothing would be best); and with shuffled rewards sampled accuracy
rises by {100 * RISE:g} points at most, with a 95 % interval that reaches 0. (A constant reward needs no
measuring: these baselines learn from how the answers to a question differ in worth, and there is no gradient where they
do not.) Where the way of an answer can be forced by its first words, the best one is the ceiling of what choosing well
can reach and the worst is the floor. What needs no skill is always the same answer: the commonest of the test questions
stands beside them, where they have one answer each.

This page is made by `selfteach regimes --page docs/regimes.md`, from what `selfteach regimes NAME --measure` found. The
site has it as <a href="live/regimes.html">a table that sorts</a>, too, with curves to zoom.
"""
LISTED = ["name", "what for", "task", "model", "greedy %", "sampled %", "seconds of training", "status"]


def one_line(text: str) -> str:
    """The first line of a docstring."""
    return text.partition("\n")[0]


def listing(regimes: Sequence[Regime], evidence: Mapping[str, Mapping[str, Any]]) -> ReportTable:
    """All regimes: name, purpose, task, model, accuracy from start to end, seconds of training, status."""
    rows = [_row(home, evidence.get(home.name)) for home in regimes]
    return ReportTable(counted(len(rows), "regime"), LISTED, rows)


def _row(home: Regime, found: Mapping[str, Any] | None) -> list[str]:
    learned = (found or {}).get("baseline")
    accuracy = [
        formatted_change(k, learned["before"][k], learned["after"][k]) if learned else "-"
        for k in ("greedy", "sampled")
    ]
    seconds = formatted_cost(learned["cost"]["seconds"]) if learned else "-"
    return [home.name, one_line(home.doc), home.task, home.model, *accuracy, seconds, status(home, found)]


# ---- the evidence as tables


def evidence_tables(result: Mapping[str, Any]) -> list[ReportTable]:
    """What was measured of a regime: accuracies, ways, pass@k, search, costs, failure; of the parts that there are."""
    baseline, start, control, search = (result.get(p) for p in ("baseline", "start", "control", "search"))
    out: list[ReportTable] = []
    if baseline:
        out.append(_accuracies(result["method"], baseline, control))
    if start:
        out += _starts(start)
    if search:
        out.append(_searched(search, result["definition"].get("tuned_by", "")))
    if baseline:
        out.append(_costs(baseline["cost"]))
        if failure := baseline.get("failure"):
            rows = [[failure["text"], formatted_effect(failure), failure["verdict"]]]
            out.append(ReportTable("the failure that it shows", ["check", "difference", "verdict"], rows))
    return out


def _accuracies(method: str, baseline: Mapping[str, Any], control: Mapping[str, Any] | None) -> ReportTable:
    arms = {f"{method}, {len(baseline['seeds'])} seeds": baseline}
    if control:
        arms[f"rewards shuffled, {len(control['seeds'])} seeds"] = control
    rows = [
        [name, kind, *(formatted(kind, arm[when][kind]) for when in ("before", "after")), _gain(arm["gain"][kind])]
        + [formatted(kind, (arm.get("spread") or {}).get(kind))]
        for name, arm in arms.items()
        for kind in ("greedy", "sampled")
    ]
    columns = ["", "accuracy", "start %", "end %", "change [95 % interval]", "spread over seeds"]
    return ReportTable("what is learned", columns, rows)


def _gain(summary: Mapping[str, Any]) -> str:
    if summary["mean"] is None:
        return "-"
    span = summary["interval"]
    return f"{100 * summary['mean']:+.1f}" + (f" [{100 * span[0]:+.1f}, {100 * span[1]:+.1f}]" if span else "")


def _starts(start: Mapping[str, Any]) -> list[ReportTable]:
    marks = {start["ceiling"]: ", the ceiling", start["floor"]: ", the floor"} if len(start["ways"]) > 1 else {}
    rows = [["as it is", "", *_start_cells(start)]]
    rows += [[name + marks.get(name, ""), way["prefix"], *_start_cells(way)] for name, way in start["ways"].items()]
    if constant := start.get("constant"):
        share = formatted("accuracy", constant["share"])
        rows.append([f"always `{constant['answer']}`", "", share, share, "-"])
    columns = ["way", "forced by", "greedy %", "sampled %", "tokens"]
    out = [ReportTable("what it starts from", columns, rows)]
    if ks := start["pass_at_k"]:
        cells = [formatted("pass@", v) for v in ks.values()]
        out.append(ReportTable("pass@k of the start, %", [f"k={k}" for k in ks], [cells]))
    return out


def _start_cells(figures: Mapping[str, Any]) -> list[str]:
    return [formatted(name, figures[name]) for name in ("greedy", "sampled", "length")]


def _searched(search: Sequence[Mapping[str, Any]], tuned_by: str) -> ReportTable:
    rows = [
        [row["name"], f"{v['value']}", formatted("greedy", v["greedy"]), formatted("sampled", v["sampled"])]
        + ([formatted(tuned_by, v["figure"])] if tuned_by else [])
        + ["stated" if v["stated"] else f"failed: {v['failed']}" if v.get("failed") else ""]
        for row in search
        for v in row["values"]
    ]
    seeds = len(search[0]["seeds"])
    columns = ["", "value", "greedy %", "sampled %", *([f"tuned by {tuned_by}"] if tuned_by else []), "stated"]
    return ReportTable(f"the search, {counted(seeds, 'seed')}, at the end", columns, rows)


COSTS = {
    "seconds": "seconds of training",
    "seconds_warm": "of the warm start",
    "seconds_all": "with evaluations",
    "steps": "steps",
    "tokens": "sampled tokens",
    "learned": "learned tokens",
    "optimiser_steps": "optimiser steps",
}


def _costs(cost: Mapping[str, float | None]) -> ReportTable:
    cells = [formatted_cost(cost.get(name)) for name in COSTS]
    return ReportTable("what a run takes, median over seeds", list(COSTS.values()), [cells])


# ---- the page


def page(regimes: Sequence[Regime], evidence: Mapping[str, Mapping[str, Any]]) -> str:
    """The page in Markdown. Pictures are looked for beside it, in regimes/NAME.png."""
    out = [HEAD]
    if not regimes:
        return HEAD + "\nThere is none yet.\n"
    table = listing(regimes, evidence)
    out += ["\n", markdown(table.columns, [[section_link(r[0]), *r[1:]] for r in table.rows]), _taken(evidence)]
    out += [_section(home, evidence.get(home.name)) for home in regimes]
    return "".join(out)


def _taken(evidence: Mapping[str, Mapping[str, Any]]) -> str:
    """What the runs of all baselines and controls took together, as a sentence; "": there are none."""
    parts = [result.get(part) or {} for result in evidence.values() for part in ("baseline", "control")]
    seconds = [run["seconds"]["all"] for part in parts for run in part.get("runs", {}).values() if run.get("seconds")]
    if not seconds:
        return ""
    return (
        f"\nBaselines and controls are {len(seconds):,} runs of together {sum(seconds) / 3600:.0f} hours on one core,"
        " with their warm starts and evaluations; the values of searches come on top.\n"
    )


def _section(home: Regime, found: Mapping[str, Any] | None) -> str:
    out = [f"\n## {home.name}\n\n{home.doc}\n"]
    if home.shows:
        out.append(f"\nIt shows that {home.shows}.\n")
    verdict = status(home, found)
    out.append(f"\n**{verdict[:1].upper()}{verdict[1:]}**" + (f": {found['why']}.\n" if found else ".\n"))
    out += ["\n", markdown(["", ""], regime_rows(home))]
    if found is None:
        return "".join(out)
    if found.get("baseline"):
        out.append(f"\n![Held-out accuracy over steps](regimes/{home.name}.png)\n")
    for table in evidence_tables(found):
        out += [f"\n{table.title[:1].upper()}{table.title[1:]}:\n\n", markdown(table.columns, table.rows)]
    return "".join(out)


def regime_rows(home: Regime) -> list[list[str]]:
    """What a regime is, as rows of a table: task, model, baseline, settings, reward."""

    def listed(values: Mapping[str, Any]) -> str:
        return ", ".join(f"{k}={v}" for k, v in values.items())

    rows = {
        "task": home.task + (f" ({listed(home.task_options)})" if home.task_options else ""),
        "model": home.model,
        "warm starts": str(home.warm_seeds),
        "baseline": home.baseline + (f" ({listed(home.args)})" if home.args else ""),
        "settings": listed(home.settings) or "those of every regime",
    }
    if home.reward is not None:
        rows["rewarded by"] = str(home.reward)
    if home.ways:
        rows["ways"] = ", ".join(f"{name} ({prefix!r})" for name, prefix in home.ways.items())
    if home.search:
        rows["tuned over"] = "; ".join(f"{k} {', '.join(map(str, v))}" for k, v in home.search.items())
    return [[k, v] for k, v in rows.items()]


def write_page(regimes: Sequence[Regime], evidence: Mapping[str, Mapping[str, Any]], file: str | Path) -> Path:
    """Write the page, and beside it, in the folder `regimes`, a picture of each regime that has a curve.

    Raises OSError where it cannot be written, BadValue where matplotlib is not installed.
    """
    out = Path(file)
    out.parent.mkdir(parents=True, exist_ok=True)
    for home in regimes:
        found = evidence.get(home.name)
        if found and found.get("baseline"):
            draw_regime(found, out.parent / "regimes" / f"{home.name}.png")
    out.write_text(page(regimes, evidence), encoding="utf-8")
    return out


def draw_regime(result: Mapping[str, Any], file: Path) -> Path:
    """Write held-out accuracy over steps, greedy and sampled: the baseline and, dashed, the control, means with 95 %
    bands over seeds; and as lines the best and the worst way that the start can be forced to go.

    Raises BadValue where matplotlib is not installed.
    """
    baseline, control = result["baseline"], result.get("control")
    start: Mapping[str, Any] = result.get("start") or {"ways": {}}
    ways = start["ways"]
    forced = dict.fromkeys(way for way in (start.get("ceiling"), start.get("floor")) if way)
    with plot_style() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(12.0, 4.0), sharey=True, layout="constrained")
        for axis, kind in zip(axes, ("greedy", "sampled"), strict=True):
            draw_band(axis, baseline["curve"][kind], result["method"], COLOURS[0])
            if control:
                draw_band(axis, control["curve"][kind], "rewards shuffled", COLOURS[1], "o--")
            for way in forced:
                height, at = ways[way][kind], ("axes fraction", "data")
                if height is not None:
                    axis.axhline(100 * height, color=BEFORE_COLOUR, linestyle=":", linewidth=1.2)
                    axis.annotate(f"start, {way}", (1, 100 * height), xycoords=at, fontsize=8, ha="right", va="bottom")
            axis.set(title=f"Held-out accuracy, {kind}", xlabel="step", ylabel="%", ylim=(-3, 103))
        axes[0].legend()
        title = f"{result['regime']}, {len(baseline['seeds'])} seeds"
        figure.suptitle(title, x=0.005, ha="left", fontsize=13, fontweight="bold")
        return save_figure(figure, file)
