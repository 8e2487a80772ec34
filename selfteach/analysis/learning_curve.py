"""Held-out accuracy over the steps of a run, and figures of it: the area under it, how soon it reaches a level, what it
tends to.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .scaling_fit import fit_scaling, forecast

Points = Sequence[tuple[float, float]]  # (step, accuracy), in order of steps
OF_CURVES = ("auc", "steps_to@", "asymptote", "forecast@")
# An evaluation on the way tells "greedy" and "sampled"; those before and after call the sampled one "accuracy".
KINDS = ("sampled", "greedy")


def curve(events: Iterable[Mapping[str, Any]], kind: str = "sampled") -> list[tuple[float, float]]:
    """(step, accuracy) of a run's log, from the evaluation before training to that after it.

    kind: "sampled" or "greedy". Without samples in the evaluations on the way there are two points, before and after.
    """
    found: dict[float, float | None] = {}
    for e in events:
        if e["event"] == "eval":
            found[e["step"]] = e.get(kind, e.get("accuracy") if kind == "greedy" else None)
        elif e["event"] == "final_eval":
            found[e["step"]] = e["figures"].get("accuracy" if kind == "sampled" else kind)
    return sorted((s, v) for s, v in found.items() if v is not None)


def area(points: Points) -> float:
    """The area under a curve by trapezoids over its length: its mean height.

    >>> area([(0, 0.2), (10, 0.6), (30, 0.6)])    # (10 * 0.4 + 20 * 0.6) / 30
    0.5333333333333333
    """
    parts = [(b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points)]
    return sum(parts) / (points[-1][0] - points[0][0])


def steps_to(points: Points, level: float) -> float:
    """The first step at which a curve reaches a level, between evaluations in a straight line; its last step if never.

    >>> steps_to([(0, 0.2), (10, 0.6), (30, 0.6)], 0.4), steps_to([(0, 0.2), (10, 0.6)], 0.7)
    (5.0, 10.0)
    """
    if points[0][1] >= level:
        return float(points[0][0])
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if y1 >= level:
            return float(x0 + (x1 - x0) * (level - y0) / (y1 - y0))
    return float(points[-1][0])


def curve_figures(events: Iterable[Mapping[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """Those of `names` that are figures of the curve: auc, steps_to@0.8, asymptote (of the sigmoid through it),
    forecast@0.5 (its end as that through its first half foretells it); auc:greedy is of greedy accuracy.

    A run without an evaluation on the way has none of them.
    """
    log, out = list(events), dict[str, float]()
    for name in names:
        measure, _, kind = name.partition(":")
        if not measure.startswith(OF_CURVES):
            continue
        points = curve(log, kind or "sampled")
        if len(points) > 2 and (value := _figure(measure, points)) is not None:
            out[name] = value
    return out


def _figure(measure: str, points: Points) -> float | None:
    what, _, number = measure.partition("@")
    if what == "auc":
        return area(points)
    if what == "asymptote":
        return None if (fit := fit_scaling(points)) is None else fit.asymptote
    return steps_to(points, float(number)) if what == "steps_to" else forecast(points, float(number))
