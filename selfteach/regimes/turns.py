"""Regimes of acting in an environment over many turns, rewarded at the end alone."""

from __future__ import annotations

from typing import Any

from ..core.regime import Regime, regime
from .digits import BATCH, RUN, SEARCH

TURNS: dict[str, Any] = {
    "model": "tiny-s",
    "settings": {**RUN, "warm_practice_steps": 1500, "warm_steps": 300, "warm_batch": 32, "warm_lr": 2e-3, "steps": 60},
    "args": BATCH,
    "search": SEARCH,
}


@regime
def turns() -> Regime:
    """A household, where a thing is to be found, treated and brought somewhere in twelve turns.

    At each turn the start may do what leads on, wander, repeat what has just failed, or give up. It gets to the end of
    a fifth of its episodes; half of those of the test ask for a thing with a treatment that training never has.
    """
    return Regime(task="household", **TURNS)
