"""Training curves of a run as a picture, from its event log, and the style that all charts share.

matplotlib is imported only where a picture is drawn.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..core.extras import optional
from ..loop.log import read_events
from .figures import Figures, decoders, figure_name, pass_at_ks, tag_kinds, tags
from .learning_curve import Points, curve

BEFORE_COLOUR, AFTER_COLOUR, ACCENT_COLOUR, TEXT_COLOUR = "#9aa7b4", "#0067a5", "#d55e00", "#24292f"
COLOURS = ("#0067a5", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#5b5ea6", "#444444")


@dataclass
class Curves:
    """What a log holds over steps: metrics of the steps, evaluations during training, and those before and after."""

    title: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    evals: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    before: Figures = field(default_factory=dict[str, float | None])
    after: Figures = field(default_factory=dict[str, float | None])
    sampled: Points = ()  # (steps done, held-out sampled accuracy)

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) of a metric where it is known; steps count from 1."""
        known = [(e["step"] + 1, e[name]) for e in self.steps if e.get(name) is not None]
        return np.array([s for s, _ in known]), np.array([v for _, v in known], float)

    def evaluations(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) of a held-out figure in the evaluations during training."""
        known = {e["step"]: e[name] for e in self.evals if e.get(name) is not None}
        return np.array(list(known)), np.array(list(known.values()), float)


def curves_of(events: Sequence[Mapping[str, Any]], title: str = "") -> Curves:
    """The curves of a list of events. Of a step that was logged twice (after a kill) the last event counts."""
    steps = {e["step"]: dict(e) for e in events if e["event"] == "step"}
    evals = {e["step"]: dict(e) for e in events if e["event"] == "eval"}
    final_evals = {e["when"]: e["figures"] for e in events if e["event"] == "final_eval"}
    return Curves(
        title,
        [steps[s] for s in sorted(steps)],
        [evals[s] for s in sorted(evals)],
        final_evals.get("start", {}),
        final_evals.get("end", {}),
        curve(events, "sampled"),
    )


def draw_run(run: Path) -> Path | None:
    """Draw RUN/curves.png from the run's log and return it; None where there is nothing to draw yet. Raises OSError."""
    curves = curves_of(read_events(run / "log"), run_title(run))
    if not curves.steps and not curves.after:
        return None
    return draw(curves, run / "curves.png")


def run_title(run: Path) -> str:
    """The title of a run's picture: method, task, folder."""
    try:
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
        return f"{config['method']['name']} on {config['task']}  ({run.name})"
    except (OSError, ValueError, KeyError, TypeError):
        return run.name


def draw(curves: Curves, file: Path) -> Path:
    """Write the curves as a picture."""
    return save_figure(figure_of(curves), file)


def figure_of(curves: Curves) -> Any:
    """A matplotlib figure of the panels for which there are values, three in a row; no part of pyplot's state."""
    figures = optional("matplotlib.figure", "plot", "picture")
    wanted = [p for p, is_shown in PANELS if is_shown(curves)]
    columns = max(1, min(3, len(wanted)))
    rows = max(1, -(-len(wanted) // columns))
    with optional("matplotlib", "plot", "picture").rc_context(STYLE):
        figure = figures.Figure(figsize=(5.0 * columns, 3.6 * rows + 0.4), dpi=DPI, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)
        for axis, panel in zip(axes.flat, wanted, strict=False):
            panel(curves, axis)
            if axis.get_xlabel() == "step":
                axis.xaxis.get_major_locator().set_params(integer=True)
        for axis in axes.flat[len(wanted) :]:
            axis.set_axis_off()
        figure.suptitle(curves.title, x=0.005, ha="left", fontsize=13, fontweight="bold", color=TEXT_COLOUR)
    return figure


DPI = 110
STYLE: dict[Any, Any] = {
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
    "axes.labelcolor": TEXT_COLOUR,
    "text.color": TEXT_COLOUR,
    "xtick.color": TEXT_COLOUR,
    "ytick.color": TEXT_COLOUR,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "savefig.dpi": DPI,
}


@contextmanager
def plot_style() -> Generator[Any]:
    """matplotlib.pyplot without a screen, in this library's style, until the block ends."""
    optional("matplotlib", "plot", "picture").use("Agg")
    plt = optional("matplotlib.pyplot", "plot", "picture")
    with plt.rc_context(STYLE):
        yield plt
    plt.close("all")


def png_of(figure: Any) -> bytes:
    """A figure as the bytes of a picture."""
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def save_figure(figure: Any, file: Path) -> Path:
    """Write a picture atomically."""
    temporary = file.with_name(f".{file.name}.new")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(temporary, format="png")
    os.replace(temporary, file)
    return file


def running_mean(values: np.ndarray) -> np.ndarray:
    """A centred running mean over about a tenth of the curve, shorter at the ends, f64[N] -> f64[N]."""
    half = max(1, len(values) // 20)
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])


def _line(axis: Any, x: np.ndarray, y: np.ndarray, label: str, colour: str) -> None:
    """Draw a metric: each step pale, its running mean strong."""
    if len(y) > 12:
        axis.plot(x, y, color=colour, alpha=0.25, linewidth=1)
        y = running_mean(y)
    axis.plot(x, y, color=colour, linewidth=2, label=label)


def _learning(curves: Curves, axis: Any) -> None:
    x, y = curves.column("reward/mean")
    if len(y):
        _line(axis, x, y, "reward in training", ACCENT_COLOUR)
    last = curves.steps[-1]["step"] + 1 if curves.steps else 0
    held_out = (("accuracy", "greedy", AFTER_COLOUR), ("reward", "reward_greedy", COLOURS[2]))
    for name, end_name, colour in held_out:
        x, y = curves.evaluations(name)
        ends = [(at, f.get(end_name)) for at, f in ((0, curves.before), (last, curves.after))]
        values = {float(a): b for a, b in zip(x, y, strict=True)} | {float(a): b for a, b in ends if b is not None}
        if values:
            at = sorted(values)
            style: dict[str, Any] = {"color": colour, "markersize": 4, "linewidth": 1.5}
            axis.plot(at, [values[a] for a in at], "o-", label=f"held-out {name}, greedy", **style)
    if len(curves.sampled) > 2:  # with samples on the way
        style = {"color": COLOURS[3], "markersize": 4, "linewidth": 1.5}
        axis.plot(*zip(*curves.sampled, strict=True), "o-", label="held-out accuracy, sampled", **style)
    axis.set(title="Reward and accuracy", xlabel="step", ylabel="mean")
    axis.legend()


def _pass_at_k(curves: Curves, axis: Any) -> None:
    ks = pass_at_ks(curves.before, curves.after)
    for figures, name, colour in ((curves.before, "before", BEFORE_COLOUR), (curves.after, "after", AFTER_COLOUR)):
        points = [(k, figures.get(f"pass@{k}")) for k in ks]
        points = [(k, 100 * v) for k, v in points if v is not None]
        if points:
            axis.plot(
                [k for k, _ in points],
                [v for _, v in points],
                "o-",
                color=colour,
                label=name,
                markersize=4,
                linewidth=2,
            )
    axis.set_xscale("log", base=2)
    axis.set_xticks(ks, [str(k) for k in ks])
    axis.minorticks_off()
    axis.set(title="pass@k", xlabel="samples k", ylabel="pass@k, %")
    axis.legend()


def _bars(axis: Any, groups: Sequence[str], series: Sequence[tuple[str, str, Sequence[float | None]]]) -> None:
    """Bars side by side, each with its height written on it."""
    width = 0.8 / max(1, len(series))
    for n, (name, colour, values) in enumerate(series):
        at = [
            g + (n - (len(series) - 1) / 2) * width for g, v in enumerate(values) if v is not None and math.isfinite(v)
        ]
        heights = [100 * v for v in values if v is not None and math.isfinite(v)]
        drawn = axis.bar(at, heights, width * 0.92, color=colour, label=name)
        axis.bar_label(drawn, fmt="%.0f", fontsize=8, padding=1, color=TEXT_COLOUR)
    axis.set_xticks(range(len(groups)), groups)
    axis.margins(y=0.15)
    axis.legend(
        ncols=len(series), loc="upper left", bbox_to_anchor=(0, 1.02), borderaxespad=0, handlelength=1, columnspacing=1
    )
    top = max([c.get_height() for c in axis.patches], default=0)
    axis.set_ylim(0, max(1.0, top * 1.28))


def _decoders(curves: Curves, axis: Any) -> None:
    programs = decoders(curves.before, curves.after)
    series = [
        (name, colour, [f.get(figure_name("accuracy", decoder=d)) for d in programs])
        for f, name, colour in ((curves.before, "before", BEFORE_COLOUR), (curves.after, "after", AFTER_COLOUR))
        if f
    ]
    _bars(axis, [d.replace("_", "\n") or "own\nprogram" for d in programs], series)
    axis.set(title="Held-out accuracy by decoder", ylabel="sampled, %")


def _tags(curves: Curves, axis: Any) -> None:
    kind = tag_kinds(curves.before, curves.after)[0]
    by = [t for t in tags(curves.before, curves.after) if t.startswith(kind + "=")]
    series: list[tuple[str, str, list[float | None]]] = []
    for f, name, colour in ((curves.before, "before", BEFORE_COLOUR), (curves.after, "after", AFTER_COLOUR)):
        if f:
            series.append((name, colour, [f.get(figure_name("accuracy", t)) for t in by]))
    for decoder in [d for d in decoders(curves.after) if d][:1]:
        values = [curves.after.get(figure_name("accuracy", t, decoder)) for t in by]
        series.append((f"after, with {decoder.replace('_', ' ')}", ACCENT_COLOUR, values))
    _bars(axis, [t.replace("=", " ") for t in by], series)
    axis.set(
        title=f"Held-out accuracy by number of {kind}" if kind in ("hops", "terms") else f"Held-out accuracy by {kind}",
        ylabel="sampled, %",
    )


def _metric(name: str, title: str, unit: str, log: bool = False) -> Callable[[Curves, Any], None]:
    def panel(curves: Curves, axis: Any) -> None:
        x, y = curves.column(name)
        _line(axis, x, y, title, COLOURS[5])
        axis.set(title=title, xlabel="step", ylabel=unit)
        if log and len(y) and (y > 0).all():
            axis.set_yscale("log")
            axis.set_ylim(10 ** (math.floor(math.log10(y.min()) - 0.3)), 10 ** (math.ceil(math.log10(y.max()) + 0.3)))
        elif len(y) and y.min() >= 0:
            axis.set_ylim(bottom=0)

    return panel


def _has_metric(name: str, varies: bool = False) -> Callable[[Curves], bool]:
    def has(curves: Curves) -> bool:
        _, y = curves.column(name)
        return len(y) > 0 and (not varies or bool(np.any(y != 0)))

    return has


PANELS: tuple[tuple[Callable[[Curves, Any], None], Callable[[Curves], bool]], ...] = (
    (_learning, lambda c: _has_metric("reward/mean")(c) or bool(c.evals)),
    (
        _metric("policy/loss", "Loss", "nats a token"),
        lambda c: _has_metric("policy/loss")(c) and not _has_metric("reward/mean")(c),
    ),
    (_pass_at_k, lambda c: bool(pass_at_ks(c.before, c.after))),
    (_decoders, lambda c: len(decoders(c.before, c.after)) > 1),
    (_tags, lambda c: any(figure_name("accuracy", t) in c.after for t in tags(c.before, c.after))),
    (
        _metric("rollout/length_mean", "Length of an episode", "sampled tokens"),
        _has_metric("rollout/length_mean", varies=True),
    ),
    (
        _metric("rollout/tool_calls_mean", "Tool calls", "calls an episode"),
        _has_metric("rollout/tool_calls_mean", varies=True),
    ),
    (
        _metric(
            "policy/logprob_mismatch_mean", "Log-prob mismatch of engine and learner", "nats a token, mean", log=True
        ),
        _has_metric("policy/logprob_mismatch_mean", varies=True),
    ),
)
