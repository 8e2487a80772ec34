"""Learning curves of the arms of a claim as a picture, from its result alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .comparison import mean_curve
from .curves import COLOURS, plot_style, save_figure
from .learning_curve import KINDS


def draw_curves(result: Mapping[str, Any], file: Path) -> Path:
    """Write held-out accuracy over steps, sampled and greedy, of each arm: means with 95 % bands over seeds.

    result: of `experiments.reproduce`. Raises BadValue where matplotlib is not installed.
    """
    with plot_style() as plt:
        figure, axes = plt.subplots(1, len(KINDS), figsize=(12.0, 4.0), sharey=True, layout="constrained")
        for axis, kind in zip(axes, KINDS, strict=True):
            for n, (name, arm) in enumerate(result["arms"].items()):
                runs = [dict(map(tuple, run["curves"][kind])) for run in arm["seeds"].values()]
                points = mean_curve([r for r in runs if r])
                draw_band(axis, points, name, COLOURS[n % len(COLOURS)])
            axis.set(title=f"Held-out accuracy, {kind}", xlabel="step", ylabel="%")
        axes[0].legend()
        title = f"{result['method']} in {result['regime'] or result['task']}, {len(result['seeds'])} seeds"
        figure.suptitle(title, x=0.005, ha="left", fontsize=13, fontweight="bold")
        return save_figure(figure, file)


def draw_band(axis: Any, points: Sequence[Mapping[str, Any]], label: str, colour: str, style: str = "o-") -> None:
    """Draw a curve of accuracies (`comparison.mean_curve`) in per cent, with its band where there are seeds for one.

    A t interval may go beyond what accuracy can be; the band does not.
    """
    x = [p["step"] for p in points]
    axis.plot(x, [100 * p["mean"] for p in points], style, color=colour, markersize=3, label=label)
    ends = ([p["mean"] if p[end] is None else p[end] for p in points] for end in ("low", "high"))
    low, high = ([100 * min(max(v, 0.0), 1.0) for v in end] for end in ends)
    axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
