"""Bootstrap intervals over seeds.

The resampling has a fixed random key, so the same values always give the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from ..core.random_keys import key, uniform

DRAWS = 10_000
# fmt: off
# Student's t at 97.5 % for 1 to 30 degrees of freedom.
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on


def bootstrap_means(values: Sequence[float] | np.ndarray, draws: int = DRAWS) -> np.ndarray:
    """Means of resamples with replacement, f64[draws]; which values are picked depends on their number alone."""
    x = np.asarray(values, float)
    picks = (uniform(key("bootstrap", len(x)), np.arange(draws * len(x))) * len(x)).astype(int)
    return x[picks].reshape(draws, len(x)).mean(1)


def tail_probability(n: int) -> float:
    """The probability cut from each end for a 95 % interval of n values: less than 2.5 % where n is small.

        Phi(-sqrt(n / (n - 1)) t_{n-1})        (the expanded percentiles of Hesterberg 2015, section 4.1)

    Plain percentiles of few values are too narrow: where there is no true difference they would find one too often.
    """
    t = _T_975[n - 2] if n - 1 <= len(_T_975) else 1.96 + (1.96**3 + 1.96) / (4 * (n - 1))
    return NormalDist().cdf(-((n / (n - 1)) ** 0.5) * t)


def interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean over seeds; NaN for fewer than two values.

    With three or four seeds it reaches from the smallest to the largest value: resampling can say no more.

    >>> interval([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    if len(values) < 2:
        return float("nan"), float("nan")
    tail = tail_probability(len(values))
    low, high = np.quantile(bootstrap_means(values), [tail, 1 - tail])
    return float(low), float(high)


def summary(values: Sequence[float | None]) -> dict[str, float | list[float] | None]:
    """Mean and interval over the seeds whose value is known and finite; None where there are too few."""
    known = [v for v in values if v is not None and np.isfinite(v)]
    low, high = interval(known)
    return {"mean": float(np.mean(known)) if known else None, "interval": [low, high] if len(known) > 1 else None}
