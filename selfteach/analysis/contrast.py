"""Several methods beside each other: mean and interval over seeds, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .bootstrap import interval, summary
from .curves import COLOURS, save, styled
from .figures import Table, is_share, written

MEASURES = ("accuracy", "greedy", "length", "calls", "tokens", "seconds")


def contrast(arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """arm -> per measure the mean and 95 % interval over seeds, the difference to the first arm, and the curve of held-out accuracy.

    `arms`: for each arm one {"figures": ..., "evals": ...} per seed, in the same order of seeds.
    """
    first = next(iter(arms))
    out: dict[str, Any] = {}
    for name, runs in arms.items():
        figures = {m: [r["figures"].get(m) for r in runs] for m in MEASURES}
        told = {m: {**summary(v), "per_seed": v} for m, v in figures.items() if any(x is not None for x in v) and (m != "calls" or any(v))}
        out[name] = {**told, "curve": curve([r["evals"] for r in runs])}
        pairs = [(r["figures"].get("accuracy"), o["figures"].get("accuracy")) for r, o in zip(runs, arms[first], strict=True)]
        if name != first:
            out[name]["against_first"] = summary([a - b for a, b in pairs if a is not None and b is not None])
    return out


def curve(runs: Sequence[Mapping[int, float]]) -> list[dict[str, Any]]:
    """The mean and interval of a figure over steps, at the steps that every run has."""
    common = sorted(set.intersection(*(set(r) for r in runs))) if runs else []
    out = []
    for step in common:
        values = [r[step] for r in runs]
        low, high = interval(values)
        out.append({"step": step, "mean": float(np.mean(values)), "low": low, "high": high})
    return out


def spread(measure: str, told: Mapping[str, Any] | None) -> str:
    """`52.5 [50.1, 55.0]`."""
    if not told or told["mean"] is None:
        return "-"
    if not told["interval"]:
        return written(measure, told["mean"])
    low, high = told["interval"]
    return f"{written(measure, told['mean'])} [{written(measure, low)}, {written(measure, high)}]"


def table(result: Mapping[str, Any], title: str) -> Table:
    """What `contrast` gives, as a table."""
    heads = {
        "accuracy": "sampled %",
        "greedy": "greedy %",
        "length": "length",
        "calls": "calls",
        "tokens": "sampled tokens",
        "seconds": "seconds of RL",
    }
    shown = [m for m in MEASURES if any(m in told for told in result.values())]
    rows = []
    for name, told in result.items():
        against = spread("accuracy", told["against_first"]) if "against_first" in told else ""
        rows.append(
            [name, *(spread(m, told.get(m)) if is_share(m) or m == "length" else written(m, (told.get(m) or {}).get("mean")) for m in shown), against]
        )
    return Table(title, ["", *(heads[m] for m in shown), "against the first"], rows)


def draw(result: Mapping[str, Any], title: str, file: Path) -> Path:
    """Held-out accuracy over steps with bands, and at the end with intervals."""
    curves = any(len(told["curve"]) > 1 for told in result.values())
    with styled() as plt:
        figure, axes = plt.subplots(1, 1 + curves, figsize=(6.0 * (1 + curves), 0.35 * len(result) + 3.4), squeeze=False, layout="constrained")
        if curves:
            axis = axes[0, 0]
            for n, (name, told) in enumerate(result.items()):
                x = [p["step"] for p in told["curve"]]
                axis.plot(
                    x, [100 * p["mean"] for p in told["curve"]], color=COLOURS[n % len(COLOURS)], linewidth=2, label=name, marker="o", markersize=3
                )
                low, high = ([100 * p[k] for p in told["curve"]] for k in ("low", "high"))
                axis.fill_between(x, low, high, color=COLOURS[n % len(COLOURS)], alpha=0.15, linewidth=0)
            axis.set(title="On the way", xlabel="step", ylabel="held-out accuracy, greedy, %")
            axis.legend()
        axis = axes[0, -1]
        for n, told in enumerate(result.values()):
            _point(axis, n, told.get("accuracy"), COLOURS[n % len(COLOURS)])
        axis.set_yticks(range(len(result)), list(result))
        axis.set_ylim(len(result) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
        axis.grid(axis="x", visible=True)
        seeds = max((len(t["accuracy"]["per_seed"]) for t in result.values() if "accuracy" in t), default=0)
        axis.set(
            title=f"At the end: mean and 95 % interval, {seeds} seeds" if seeds > 1 else "At the end, one seed",
            xlabel="held-out accuracy, sampled, %",
        )
        figure.suptitle(title, x=0.005, ha="left", fontsize=13, fontweight="bold")
        return save(figure, file)


def _point(axis: Any, at: int, told: Mapping[str, Any] | None, colour: str) -> None:
    """One arm: its seeds pale, their mean strong, the interval as a line."""
    if not told or told["mean"] is None:
        return
    known = [100 * v for v in told["per_seed"] if v is not None]
    axis.plot(known, [at] * len(known), "o", color=colour, alpha=0.3, markersize=5)
    if told["interval"]:
        axis.plot([100 * v for v in told["interval"]], [at, at], color=colour, linewidth=2)
    axis.plot([100 * told["mean"]], [at], "o", color=colour, markersize=8)
