"""Regimes on written texts, which can be done well in many ways and are judged point by point."""

from __future__ import annotations

from ..core.regime import Regime, regime
from .digits import BATCH, RUN, WARM


@regime
def written() -> Regime:
    """Reports of three or four facts in a demanded style, of which the start gets most points wrong now and then.

    Each point can be done well and mostly some are not: one report in sixteen is right throughout. What is practised
    before is practised until values are copied from the table, which comes late and all at once.
    """
    return Regime(
        task="report",
        # A demand is met more often than not: one that is met by chance is not learned to be one in so few steps.
        task_options={"kept": 1.0, "padded": 0.1, "repeated": 0.1, "obeyed": (0.65, 0.55, 0.65)},
        model="tiny-s",
        settings={
            **WARM,
            "warm_practice_steps": 3000,
            "warm_steps": 300,
            **RUN,
            "lr": 3e-4,
            "steps": 80,
            "eval_every": 8,
        },
        args=BATCH,
        search={"lr": (1e-4, 3e-4, 1e-3)},
    )
