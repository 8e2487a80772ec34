"""Regimes of games between two players, in which thinking before a move pays."""

from __future__ import annotations

from ..core.regime import Regime, regime
from .digits import RUN, WARM


@regime
def nim() -> Regime:
    """Nim with three piles: a move is thought out in three of ten cases, and else made at random.

    How to think is practised before. Whoever thinks leaves a nim-sum of 0, and wins where that can be done. Measured
    against a player who errs nowhere, from whom a game is only won by whoever never errs either.
    """
    return Regime(
        task="games",
        task_options={"games": ("nim",), "noise": 0.7, "thoughts": True},
        model="tiny-s",
        settings={**WARM, "warm_practice_steps": 1500, "warm_steps": 300, **RUN, "steps": 60},
        args={"groups": 64},
        baseline="spiral",
        search={"lr": (1e-4, 3e-4, 1e-3)},
    )
