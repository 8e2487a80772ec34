"""What searching is worth: accuracy against calls of tools, as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import BadValue
from .curves import COLOURS, plot_style, save_figure
from .figures import decoders, figure_name, parse

DOT = 500.0  # points squared of a dot that stands for all answers


class CallGroup(NamedTuple):
    """The answers of a program that made so many calls: their share of all, and how many of them are right."""

    calls: int
    share: float
    accuracy: float


def call_groups(figures: Mapping[str, float], decoder: str = "") -> list[CallGroup]:
    """The answers of a program by their number of calls, fewest first, from an evaluation with `by_calls`.

    >>> call_groups({"accuracy/calls=1": 0.5, "share/calls=1": 0.8, "accuracy/calls=0": 0.1, "share/calls=0": 0.2})
    [CallGroup(calls=0, share=0.2, accuracy=0.1), CallGroup(calls=1, share=0.8, accuracy=0.5)]
    """
    names = [parse(name) for name in figures]
    counts = sorted(int(n.tag[6:]) for n in names if n[0] == "share" and n.tag[:6] == "calls=" and n.decoder == decoder)

    def of(measure: str, n: int) -> float:
        return figures[figure_name(measure, f"calls={n}", decoder)]

    return [CallGroup(n, of("share", n), of("accuracy", n)) for n in counts]


def draw_calls(figures: Mapping[str, float], title: str, file: Path) -> Path:
    """Write accuracy by the number of calls (a dot's area: the share of the answers), and each program as a point: in a
    panel of their own where there are several, else beside its dots.

    Raises BadValue where no program calls anything, and where matplotlib is not installed.
    """
    programs = [d for d in decoders(figures) if call_groups(figures, d)]
    if not any(figures.get(figure_name("calls", decoder=d)) for d in programs):
        raise BadValue(f"{title}: nothing was called, so there is no accuracy against calls; leave --picture out")
    with plot_style() as plt:
        alone = len(programs) == 1
        size = (7.0 if alone else 12.0, 4.4)
        figure, axes = plt.subplots(1, 2 - alone, figsize=size, sharey=True, squeeze=False, layout="constrained")
        left, right = axes[0, 0], axes[0, -1]
        for n, decoder in enumerate(programs):
            colour, label = COLOURS[n % len(COLOURS)], decoder.replace("_", " ") or "own program"
            groups = call_groups(figures, decoder)
            calls, hits = [g.calls for g in groups], [100 * g.accuracy for g in groups]
            left.plot(calls, hits, color=colour, linewidth=1, alpha=0.6)
            left.scatter(calls, hits, s=[DOT * g.share for g in groups], color=colour, alpha=0.7)
            if alone:
                _point(right, figures, decoder, COLOURS[1], "all answers, with one standard error", "D")
            else:
                _point(right, figures, decoder, colour, label)
        left.set(title="by the number of calls (area: share of answers)", xlabel="calls", ylabel="held-out accuracy, %")
        left.xaxis.get_major_locator().set_params(integer=True)
        if not alone:
            right.set(title="programs, with one standard error", xlabel="calls of an answer, mean")
            right.set_xlim(-0.05 * right.dataLim.x1, 1.1 * right.dataLim.x1)  # programs that lie close look so
        right.legend()
        figure.suptitle(title, x=0.005, ha="left", fontsize=13, fontweight="bold")
        return save_figure(figure, file)


def _point(axis: Any, figures: Mapping[str, float], decoder: str, colour: str, label: str, marker: str = "o") -> None:
    mean, accuracy, error = (figures[figure_name(m, decoder=decoder)] for m in ("calls", "accuracy", "stderr"))
    axis.errorbar([mean], [100 * accuracy], yerr=[100 * error], fmt=marker, color=colour, capsize=3, label=label)
