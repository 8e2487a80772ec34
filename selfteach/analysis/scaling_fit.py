"""A sigmoid of accuracy against compute: what a run tends to, and how far a part of it tells the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SIZES = (25, 25, 25)  # values of asymptote, midpoint and exponent in a round of the search
ROUNDS = 4  # each searches around the best of the one before, at a quarter of its width
EXPONENTS = (0.25, 8.0)


class ScalingFit(NamedTuple):
    """Accuracy over compute, R(C) = start + (asymptote - start) / (1 + (midpoint / C)^exponent).

    Khatri et al. 2025 (ScaleRL, arXiv 2510.13786), equation 1: the asymptote is what all compute would reach, the
    exponent how fast it is approached, the midpoint the compute that makes half of the gain. error: the root of the
    mean squared residual over the points that were fitted.
    """

    start: float
    asymptote: float
    midpoint: float
    exponent: float
    error: float

    def __call__(self, compute: float) -> float:
        """Accuracy at a compute, in the unit that was fitted (steps, tokens, seconds)."""
        return float(
            _sigmoid(np.asarray([compute], float), self.start, self.asymptote, self.midpoint, self.exponent)[0]
        )


def _sigmoid(compute: np.ndarray, start: float, asymptote: object, midpoint: object, exponent: object) -> np.ndarray:
    with np.errstate(divide="ignore", over="ignore"):
        share = 1.0 / (1.0 + (np.asarray(midpoint) / compute) ** np.asarray(exponent))
    return np.asarray(start + (np.asarray(asymptote) - start) * share)


def fit_scaling(points: Sequence[tuple[float, float]], highest: float = 1.0) -> ScalingFit | None:
    """The sigmoid through (compute, accuracy), the first of which is before training; None for fewer than four points.

    Least squares by a search over a grid, which is made finer around its best place: three parameters are few, and
    their surface has a long valley in which descent stops early. The start is the first point's accuracy. highest: the
    largest value that accuracy can have.

    >>> true = ScalingFit(0.2, 0.9, 20.0, 2.0, 0.0)
    >>> fit = fit_scaling([(0.0, 0.2), *((c, true(c)) for c in (5.0, 10.0, 20.0, 30.0, 50.0))])
    >>> round(fit.asymptote, 2), round(fit.midpoint), round(fit.exponent, 1)
    (0.9, 20, 2.0)
    """
    start, known = points[0][1], [(c, r) for c, r in points[1:] if c > 0]
    if len(known) < 3:
        return None
    compute, reached = np.array(known, float).T
    low = np.array([min(start, float(reached.min())), np.log(compute[0] / 8), np.log(EXPONENTS[0])])
    high = np.array([highest, np.log(compute[-1] * 8), np.log(EXPONENTS[1])])
    centre, width = (low + high) / 2, (high - low) / 2
    best, error = centre, np.inf
    for _ in range(ROUNDS):
        axes = [
            np.clip(np.linspace(c - w, c + w, n), at_least, at_most)
            for c, w, n, at_least, at_most in zip(centre, width, SIZES, low, high, strict=True)
        ]
        a, m, b = (g[..., None] for g in np.meshgrid(*axes, indexing="ij"))
        residual = _sigmoid(compute, start, a, np.exp(m), np.exp(b)) - reached
        errors = np.sqrt((residual**2).mean(-1))
        at = np.unravel_index(int(errors.argmin()), errors.shape)
        best, error = np.array([axes[i][k] for i, k in enumerate(at)]), float(errors[at])
        centre, width = best, width / 4
    return ScalingFit(start, float(best[0]), float(np.exp(best[1])), float(np.exp(best[2])), error)


def forecast(points: Sequence[tuple[float, float]], share: float = 0.5) -> float | None:
    """The last point's accuracy as the sigmoid through the first `share` of the compute foretells it; None: too few."""
    fit = fit_scaling([p for p in points if p[0] <= share * points[-1][0]])
    return None if fit is None else fit(points[-1][0])
