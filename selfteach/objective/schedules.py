"""Numbers that change over a run, and moments: blocks of the history, for `Term.coef`, `Update.lr`, `Sampling.temperature`, `Update.when`."""

from __future__ import annotations

import math

from ..core import BadValue, History, block


def _share(history: History, steps: int, after: int) -> float:
    if steps < 1:
        raise BadValue(f"schedule: steps must be at least 1, not {steps}")
    return min(max(history.step - after, 0) / steps, 1.0)


@block
def linear(*, history: History, start: float = 1.0, stop: float = 0.0, steps: int = 100, after: int = 0) -> float:
    """From `start` to `stop` in equal parts over `steps` steps, begun after `after`; then it stays.

    >>> [linear(history=History(step=s), steps=4) for s in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """
    share = _share(history, steps, after)
    return (1.0 - share) * start + share * stop


@block
def cosine(*, history: History, start: float = 1.0, stop: float = 0.0, steps: int = 100, after: int = 0) -> float:
    """From `start` to `stop` along half a cosine (Loshchilov & Hutter 2017, 1608.03983, eq. 5, without restarts); then it stays.

    >>> [round(cosine(history=History(step=s), steps=4), 4) for s in (0, 1, 2, 4, 9)]  # 1/2 (1 + cos 45 degrees) = 0.8536
    [1.0, 0.8536, 0.5, 0.0, 0.0]
    """
    share = (1.0 - math.cos(math.pi * _share(history, steps, after))) / 2.0
    return (1.0 - share) * start + share * stop


@block
def from_step(*, history: History, step: int = 0, value: float = 1.0, before: float = 0.0) -> float:
    """`before` until `step`, then `value`: a term that joins in later."""
    return value if history.step >= step else before


@block
def after(*, history: History, step: int = 0) -> bool:
    """True from `step` on: `Update.when` of what waits for a warm-up."""
    return history.step >= step


@block
def before(*, history: History, step: int = 0) -> bool:
    """True until `step`: `Update.when` of what only warms up."""
    return history.step < step


@block
def every(*, history: History, steps: int = 2) -> bool:
    """True at step 0 and each `steps` after it."""
    return history.step % steps == 0
