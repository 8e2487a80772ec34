"""Methods compared: mean and interval over seeds, as a table and as a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .curves import COLOURS, plot_style, save_figure
from .figures import ReportTable, formatted, is_fraction
from .statistics import interval, summary

MEASURES = ("reward", "reward_greedy", "accuracy", "greedy", "length", "calls", "tokens", "seconds")


def compare_arms(arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Per arm: mean and 95 % interval of each measure, "against_first" (of the user's reward where there is one, else
    of accuracy), and the "curve" of held-out accuracy.

    arms  arm -> one {"figures": figure -> value, "evals": step -> accuracy} per seed, in the same order of seeds
    """
    first, main = next(iter(arms)), compared_by(arms)
    out: dict[str, Any] = {}
    for name, runs in arms.items():
        figures = {m: [r["figures"].get(m) for r in runs] for m in MEASURES}
        summaries = {
            m: {**summary(v), "per_seed": v}
            for m, v in figures.items()
            if any(x is not None for x in v) and (m != "calls" or any(v))
        }
        out[name] = {**summaries, "curve": mean_curve([r["evals"] for r in runs])}
        pairs = [(r["figures"].get(main), o["figures"].get(main)) for r, o in zip(runs, arms[first], strict=True)]
        if name != first:
            out[name]["against_first"] = summary([a - b for a, b in pairs if a is not None and b is not None])
    return out


def compared_by(arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What runs are compared by: the user's reward where there is one, else accuracy."""
    return "reward" if any("reward" in r["figures"] for runs in arms.values() for r in runs) else "accuracy"


def sorted_arms(arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The arms of `compare_arms`, best mean first, and those of which nothing is known last."""
    main = compared_by(arms)

    def mean(runs: Sequence[Mapping[str, Any]]) -> float:
        known = [v for r in runs if (v := r["figures"].get(main)) is not None and np.isfinite(v)]
        return float(np.mean(known)) if known else -np.inf

    return dict(sorted(arms.items(), key=lambda arm: -mean(arm[1])))


def mean_curve(runs: Sequence[Mapping[int, float]]) -> list[dict[str, Any]]:
    """Mean and interval of a figure at each step that every run has; `runs` are step -> value, empty ones left out."""
    runs = [r for r in runs if r]
    common = sorted(set.intersection(*(set(r) for r in runs))) if runs else []
    out: list[dict[str, Any]] = []
    for step in common:
        values = [r[step] for r in runs]
        low, high = interval(values)
        out.append({"step": step, "mean": float(np.mean(values)), "low": low, "high": high})
    return out


def formatted_mean(measure: str, summary: Mapping[str, Any] | None) -> str:
    """Mean and interval as text: `52.5 [50.1, 55.0]`."""
    if not summary or summary["mean"] is None:
        return "-"
    if not summary["interval"]:
        return formatted(measure, summary["mean"])
    low, high = summary["interval"]
    return f"{formatted(measure, summary['mean'])} [{formatted(measure, low)}, {formatted(measure, high)}]"


def main_measure(result: Mapping[str, Any]) -> str:
    """What arms are compared by: the user's reward where there is one, else accuracy."""
    return "reward" if any("reward" in arm for arm in result.values()) else "accuracy"


def table(result: Mapping[str, Any], title: str) -> ReportTable:
    """The result of `compare_arms` as a table."""
    main = main_measure(result)
    heads = {
        "reward": "reward, sampled",
        "reward_greedy": "reward, greedy",
        "accuracy": "sampled %",
        "greedy": "greedy %",
        "length": "length",
        "calls": "calls",
        "tokens": "sampled tokens",
        "seconds": "seconds of RL",
    }
    shown = [m for m in MEASURES if any(m in arm for arm in result.values())]
    rows: list[list[str]] = []
    for name, arm in result.items():
        against = formatted_mean(main, arm["against_first"]) if "against_first" in arm else ""
        rows.append(
            [
                name,
                *(
                    formatted_mean(m, arm.get(m))
                    if is_fraction(m) or m in ("length", "reward", "reward_greedy")
                    else formatted(m, (arm.get(m) or {}).get("mean"))
                    for m in shown
                ),
                against,
            ]
        )
    return ReportTable(title, ["", *(heads[m] for m in shown), "against the first"], rows)


def draw(result: Mapping[str, Any], title: str, file: Path) -> Path:
    """A chart of held-out accuracy: over steps with bands, and after training with intervals; of the user's reward
    where there is one.
    """
    main = main_measure(result)
    curves = any(len(arm["curve"]) > 1 for arm in result.values())
    with plot_style() as plt:
        figure, axes = plt.subplots(
            1, 1 + curves, figsize=(6.0 * (1 + curves), 0.35 * len(result) + 3.4), squeeze=False, layout="constrained"
        )
        if curves:
            axis = axes[0, 0]
            for n, (name, arm) in enumerate(list(result.items())[: len(COLOURS)]):
                x = [p["step"] for p in arm["curve"]]
                axis.plot(
                    x,
                    [100 * p["mean"] for p in arm["curve"]],
                    color=COLOURS[n % len(COLOURS)],
                    linewidth=2,
                    label=name,
                    marker="o",
                    markersize=3,
                )
                low, high = ([100 * p[k] for p in arm["curve"]] for k in ("low", "high"))
                axis.fill_between(x, low, high, color=COLOURS[n % len(COLOURS)], alpha=0.15, linewidth=0)
            some = f", the first {len(COLOURS)}" if len(result) > len(COLOURS) else ""
            axis.set(title=f"During training{some}", xlabel="step", ylabel="held-out accuracy, greedy, %")
            axis.legend()
        axis = axes[0, -1]
        for n, arm in enumerate(result.values()):
            _point(axis, n, arm.get(main), COLOURS[n % len(COLOURS)], 100 if is_fraction(main) else 1)
        axis.set_yticks(range(len(result)), list(result))
        axis.set_ylim(len(result) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
        axis.grid(axis="x", visible=True)
        seeds = max((len(t[main]["per_seed"]) for t in result.values() if main in t), default=0)
        axis.set(
            title=f"After training: mean and 95 % interval, {seeds} seeds" if seeds > 1 else "After training, one seed",
            xlabel="held-out accuracy, sampled, %" if is_fraction(main) else "held-out reward, sampled",
        )
        figure.suptitle(title, x=0.005, ha="left", fontsize=13, fontweight="bold")
        return save_figure(figure, file)


def _point(axis: Any, y: int, summary: Mapping[str, Any] | None, colour: str, scale: float) -> None:
    """One arm: its seeds pale, their mean strong, the interval as a line."""
    if not summary or summary["mean"] is None:
        return
    known = [scale * v for v in summary["per_seed"] if v is not None]
    axis.plot(known, [y] * len(known), "o", color=colour, alpha=0.3, markersize=5)
    if summary["interval"]:
        axis.plot([scale * v for v in summary["interval"]], [y, y], color=colour, linewidth=2)
    axis.plot([scale * summary["mean"]], [y], "o", color=colour, markersize=8)
