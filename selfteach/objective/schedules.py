"""Schedules: blocks of the history for `Term.coef`, `Update.lr`, `Sampling.temperature` and `Update.when`."""

from __future__ import annotations

import math

from ..core import BadValue, History, block


def _progress(history: History, steps: int, after: int) -> float:
    """The share of `steps` steps that is done, counted from step `after`, in [0, 1]."""
    if steps < 1:
        raise BadValue(f"schedule: steps must be at least 1, not {steps}")
    return min(max(history.step - after, 0) / steps, 1.0)


@block
def linear(*, history: History, start: float = 1.0, stop: float = 0.0, steps: int = 100, after: int = 0) -> float:
    """Linear from `start` to `stop` over `steps` steps, beginning at step `after`; constant from then on.

    >>> [linear(history=History(step=s), steps=4) for s in (0, 1, 4, 9)]
    [1.0, 0.75, 0.0, 0.0]
    """
    share = _progress(history, steps, after)
    return (1.0 - share) * start + share * stop


@block
def cosine(*, history: History, start: float = 1.0, stop: float = 0.0, steps: int = 100, after: int = 0) -> float:
    """Half a cosine from `start` to `stop` over `steps` steps (Loshchilov & Hutter 2017, 1608.03983, eq. 5).

    Constant from then on, without restarts. At a quarter of the way it is 1/2 (1 + cos 45 degrees) = 0.8536.

    >>> [round(cosine(history=History(step=s), steps=4), 4) for s in (0, 1, 2, 4, 9)]
    [1.0, 0.8536, 0.5, 0.0, 0.0]
    """
    share = (1.0 - math.cos(math.pi * _progress(history, steps, after))) / 2.0
    return (1.0 - share) * start + share * stop


@block
def after(*, history: History, step: int = 0) -> bool:
    """True from `step` on: `Update.when` of an update that waits for a warm-up."""
    return history.step >= step


@block
def before(*, history: History, step: int = 0) -> bool:
    """True before `step`: `Update.when` of an update that is only for the warm-up."""
    return history.step < step


@block
def every(*, history: History, steps: int = 2) -> bool:
    """True at every `steps`-th step, from step 0 on."""
    return history.step % steps == 0
