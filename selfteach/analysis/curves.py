"""A run as a picture, drawn from its event log; and a comparison as a picture. matplotlib is imported where a picture is drawn."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..loop.log import read_events
from .figures import Figures, full, kinds, ks, tags, ways

BEFORE, AFTER, PLUS, QUIET, INK = "#9aa7b4", "#0067a5", "#d55e00", "#c9d1d9", "#24292f"
COLOURS = ("#0067a5", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#5b5ea6", "#444444")


@dataclass
class Curves:
    """What a log says over steps: columns of the steps, the measurements on the way, and those at both ends."""

    title: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list)
    evals: list[dict[str, Any]] = field(default_factory=list)
    before: Figures = field(default_factory=dict)
    after: Figures = field(default_factory=dict)

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(step, value) of a metric where it is known; steps count from 1, as done."""
        found = [(e["step"] + 1, e[name]) for e in self.steps if e.get(name) is not None]
        return np.array([s for s, _ in found]), np.array([v for _, v in found], float)

    def measured(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(step, value) of a held-out figure on the way, with the surveys at both ends where they have it too."""
        found = {e["step"]: e[name] for e in self.evals if e.get(name) is not None}
        return np.array(list(found)), np.array(list(found.values()), float)


def curves(events: Sequence[Mapping[str, Any]], title: str = "") -> Curves:
    """The curves of a list of events. A step told twice (after a kill) counts once, as it was told last."""
    steps = {e["step"]: dict(e) for e in events if e["event"] == "step"}
    evals = {e["step"]: dict(e) for e in events if e["event"] == "eval"}
    surveys = {e["when"]: e["figures"] for e in events if e["event"] == "survey"}
    return Curves(title, [steps[s] for s in sorted(steps)], [evals[s] for s in sorted(evals)], surveys.get("start", {}), surveys.get("end", {}))


def picture(run: Path) -> Path | None:
    """Draw RUN/curves.png from the run's log and return it; None where there is nothing to draw yet. Raises OSError."""
    made = curves(read_events(run / "log"), named(run))
    if not made.steps and not made.after:
        return None
    return draw(made, run / "curves.png")


def named(run: Path) -> str:
    """What a run is called above its picture: method, task, folder."""
    try:
        told = json.loads((run / "config.json").read_text())
        return f"{told['method']['name']} on {told['task']}  ({run.name})"
    except (OSError, ValueError, KeyError, TypeError):
        return run.name


def draw(made: Curves, file: Path) -> Path:
    """The curves as a picture: the panels that there are figures for, three a row."""
    wanted = [p for p, has in PANELS if has(made)]
    across = min(3, len(wanted))
    down = -(-len(wanted) // across)
    with styled() as plt:
        figure, axes = plt.subplots(down, across, figsize=(5.0 * across, 3.6 * down + 0.4), squeeze=False, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
        for axis, panel in zip(axes.flat, wanted, strict=False):
            panel(made, axis)
            if axis.get_xlabel() == "step":
                axis.xaxis.get_major_locator().set_params(integer=True)
        for axis in axes.flat[len(wanted) :]:
            axis.set_axis_off()
        figure.suptitle(made.title, x=0.005, ha="left", fontsize=13, fontweight="bold", color=INK)
        return save(figure, file)


@contextmanager
def styled() -> Any:
    """matplotlib without a screen, in this library's style."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style: dict[Any, Any] = {
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.color": "#e6eaee",
        "axes.edgecolor": "#8c959f",
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "savefig.dpi": 110,
    }
    with plt.rc_context(style):
        yield plt
    plt.close("all")


def save(figure: Any, file: Path) -> Path:
    """Write a picture whole or not at all."""
    aside = file.with_name(f".{file.name}.new")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(aside, format="png")
    os.replace(aside, file)
    return file


def smooth(values: np.ndarray) -> np.ndarray:
    """A running mean over about a tenth of the curve, centred, shorter at the ends."""
    half = max(1, len(values) // 20)
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])


def _line(axis: Any, x: np.ndarray, y: np.ndarray, label: str, colour: str) -> None:
    """A metric: each step pale, its running mean strong."""
    if len(y) > 12:
        axis.plot(x, y, color=colour, alpha=0.25, linewidth=1)
        y = smooth(y)
    axis.plot(x, y, color=colour, linewidth=2, label=label)


def _learning(made: Curves, axis: Any) -> None:
    x, y = made.column("reward")
    if len(y):
        _line(axis, x, y, "reward in training", PLUS)
    x, y = made.measured("accuracy")
    last = made.steps[-1]["step"] + 1 if made.steps else 0
    ends = [(at, f.get("greedy")) for at, f in ((0, made.before), (last, made.after))]
    known = sorted({**{float(a): b for a, b in zip(x, y, strict=True)}, **{float(a): b for a, b in ends if b is not None}}.items())
    if known:
        axis.plot([a for a, _ in known], [b for _, b in known], "o-", color=AFTER, markersize=4, linewidth=1.5, label="held-out accuracy, greedy")
    axis.set(title="Reward and accuracy", xlabel="step", ylabel="mean")
    axis.legend()


def _pass(made: Curves, axis: Any) -> None:
    every = ks(made.before, made.after)
    for figures, name, colour in ((made.before, "before", BEFORE), (made.after, "after", AFTER)):
        points = [(k, figures.get(f"pass@{k}")) for k in every]
        points = [(k, 100 * v) for k, v in points if v is not None]
        if points:
            axis.plot([k for k, _ in points], [v for _, v in points], "o-", color=colour, label=name, markersize=4, linewidth=2)
    axis.set_xscale("log", base=2)
    axis.set_xticks(every, [str(k) for k in every])
    axis.minorticks_off()
    axis.set(title="At least one right answer in k", xlabel="samples k", ylabel="pass@k, %")
    axis.legend()


def _bars(axis: Any, groups: Sequence[str], series: Sequence[tuple[str, str, Sequence[float | None]]]) -> None:
    """Bars side by side, each with its height written on it."""
    wide = 0.8 / max(1, len(series))
    for n, (name, colour, values) in enumerate(series):
        at = [g + (n - (len(series) - 1) / 2) * wide for g, v in enumerate(values) if v is not None and math.isfinite(v)]
        heights = [100 * v for v in values if v is not None and math.isfinite(v)]
        drawn = axis.bar(at, heights, wide * 0.92, color=colour, label=name)
        axis.bar_label(drawn, fmt="%.0f", fontsize=8, padding=1, color=INK)
    axis.set_xticks(range(len(groups)), groups)
    axis.margins(y=0.15)
    axis.legend(ncols=len(series), loc="upper left", bbox_to_anchor=(0, 1.02), borderaxespad=0, handlelength=1, columnspacing=1)
    top = max([c.get_height() for c in axis.patches], default=0)
    axis.set_ylim(0, max(1.0, top * 1.28))


def _ways(made: Curves, axis: Any) -> None:
    every = ways(made.before, made.after)
    series = [
        (name, colour, [f.get(full("accuracy", way=w)) for w in every])
        for f, name, colour in ((made.before, "before", BEFORE), (made.after, "after", AFTER))
        if f
    ]
    _bars(axis, [w.replace("_", "\n") or "own\nprogram" for w in every], series)
    axis.set(title="Held-out accuracy by way of decoding", ylabel="sampled, %")


def _tags(made: Curves, axis: Any) -> None:
    kind = kinds(made.before, made.after)[0]
    by = [t for t in tags(made.before, made.after) if t.startswith(kind + "=")]
    series: list[tuple[str, str, list[float | None]]] = []
    for f, name, colour in ((made.before, "before", BEFORE), (made.after, "after", AFTER)):
        if f:
            series.append((name, colour, [f.get(full("accuracy", t)) for t in by]))
    for way in [w for w in ways(made.after) if w][:1]:
        series.append((f"after, with {way.replace('_', ' ')}", PLUS, [made.after.get(full("accuracy", t, way)) for t in by]))
    _bars(axis, [t.replace("=", " ") for t in by], series)
    axis.set(title=f"Held-out accuracy by number of {kind}" if kind in ("hops", "terms") else f"Held-out accuracy by {kind}", ylabel="sampled, %")


def _metric(name: str, title: str, unit: str, log: bool = False) -> Callable[[Curves, Any], None]:
    def panel(made: Curves, axis: Any) -> None:
        x, y = made.column(name)
        _line(axis, x, y, title, COLOURS[5])
        axis.set(title=title, xlabel="step", ylabel=unit)
        if log and len(y) and (y > 0).all():
            axis.set_yscale("log")
            axis.set_ylim(10 ** (math.floor(math.log10(y.min()) - 0.3)), 10 ** (math.ceil(math.log10(y.max()) + 0.3)))
        elif len(y) and y.min() >= 0:
            axis.set_ylim(bottom=0)

    return panel


def _has(name: str, varies: bool = False) -> Callable[[Curves], bool]:
    def has(made: Curves) -> bool:
        _, y = made.column(name)
        return len(y) > 0 and (not varies or bool(np.any(y != 0)))

    return has


PANELS: tuple[tuple[Callable[[Curves, Any], None], Callable[[Curves], bool]], ...] = (
    (_learning, lambda m: _has("reward")(m) or bool(m.evals)),
    (_metric("loss", "Loss", "nats a token"), lambda m: _has("loss")(m) and not _has("reward")(m)),
    (_pass, lambda m: bool(ks(m.before, m.after))),
    (_ways, lambda m: len(ways(m.before, m.after)) > 1),
    (_tags, lambda m: bool(tags(m.before, m.after))),
    (_metric("length", "Length of an episode", "sampled tokens"), _has("length", varies=True)),
    (_metric("calls", "Calls of tools", "calls an episode"), _has("calls", varies=True)),
    (_metric("gap/mean", "Gap between sampler and learner", "nats a token, mean", log=True), _has("gap/mean", varies=True)),
)
