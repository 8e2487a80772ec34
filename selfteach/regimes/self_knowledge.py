"""Regimes on questions about oneself."""

from __future__ import annotations

from ..core.regime import Regime, regime
from .digits import BATCH, RUN


@regime
def self_knowledge() -> Regime:
    """Which sums can I do? Half of the answers say neither yes nor no, and of the others seven of ten are true."""
    return Regime(
        task="self_knowledge",
        model="tiny-s",
        settings={
            **RUN,
            "warm_steps": 1200,
            "warm_batch": 32,
            "warm_lr": 2e-3,
            "steps": 40,
            "eval_every": 4,
            "lr": 1e-3,
        },
        args=BATCH,
        search={"lr": (3e-4, 1e-3, 3e-3)},
    )
