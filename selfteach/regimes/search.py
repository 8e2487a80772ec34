"""Regimes on questions over facts that a model holds in memory or that an engine can find, and how best to get there."""

from __future__ import annotations

from typing import Any

from ..core.regime import Regime, regime
from ..tasks.demo_ways import WAYS, beginning
from .digits import RUN

# A small world that even the smallest model learns by heart; what it practises first is memory and how to go each way.
WORLD: dict[str, Any] = {
    "entities": 120,
    "relations": 6,
    "hops": (1, 2),
    "held_out": 0.5,
    "withheld": 0.1,
    "missing": 0.05,
    "conflicts": 0.05,
    "practised": 0.6,
    "malformed": 0.2,
}
WARM: dict[str, Any] = {"warm_practice_steps": 1200, "warm_steps": 200, "warm_batch": 32, "warm_lr": 2e-3}


@regime
def search() -> Regime:
    """Questions of one and two hops, for a model that knows most facts by heart and mostly answers in a poor way."""
    return Regime(
        task="factworld",
        task_options={**WORLD, "ways": (0.1, 0.2, 0.1, 0.1, 0.2, 0.3)},
        model="tiny-s",
        settings={**WARM, **RUN, "steps": 60},
        args={"groups": 16, "rollouts": 8},
        ways={way: beginning(way) for way in WAYS},
        search={"lr": (1e-4, 3e-4, 1e-3)},
    )
