"""Item response: how the accuracy on one task rises with the share of its solution that is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

STEEP = np.geomspace(2.0, 40.0, 25)  # a: how fast it rises
MIDDLE = np.linspace(-0.5, 1.5, 81)  # b: where
USUAL = (8.0, 0.5)  # what few points leave open is drawn towards this
FLOOR = 0.5  # c is at most this


class Curve(NamedTuple):
    """f(l) = c + (1 - c) / (1 + exp(-a (l - b))): the logistic of three parameters whose upper end is 1 (Birnbaum 1968)."""

    a: float
    b: float
    c: float

    def __call__(self, rate: float) -> float:
        return self.c + (1.0 - self.c) / (1.0 + float(np.exp(-self.a * (rate - self.b))))

    def inverse(self, accuracy: float) -> float:
        """The rate at which the curve comes to an accuracy below 1; minus infinity where it is never so low."""
        share = (accuracy - self.c) / (1.0 - self.c)
        return self.b + float(np.log(share / (1.0 - share))) / self.a if share > 0 else -np.inf


def fit(points: Sequence[tuple[float, float, int]], prior: float = 0.1) -> Curve:
    """The curve of least squares through (rate, accuracy, rollouts) points, each weighing by its rollouts.

        sum_i n_i (f(l_i) - y_i)^2 + prior * [log(a / 8)^2 + (2 (b - 1/2))^2 + c^2],   c in [0, 1/2]

    Over a grid of a and b; for each of them c, in which f is linear, is solved for. The prior is ours: the paper leaves open what two
    points or one decide. Raises nothing: no points give the prior's own curve.
    """
    rate, y, n = (np.array([p[k] for p in points], np.float64) for k in range(3))
    a, b = STEEP[:, None, None], MIDDLE[None, :, None]
    s = 1.0 / (1.0 + np.exp(-a * (rate - b)))  # [A, B, points]
    c = ((n * (y - s) * (1 - s)).sum(-1) / ((n * (1 - s) ** 2).sum(-1) + prior)).clip(0.0, FLOOR)
    off = (n * (s + c[..., None] * (1 - s) - y) ** 2).sum(-1)
    off += prior * (np.log(a[..., 0] / USUAL[0]) ** 2 + (2 * (b[..., 0] - USUAL[1])) ** 2 + c**2)
    i, j = np.unravel_index(int(off.argmin()), off.shape)
    return Curve(float(STEEP[i]), float(MIDDLE[j]), float(c[i, j]))
