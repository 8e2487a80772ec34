"""Regimes on sums of digits, where RL has to choose among ways of answering that the start can go but seldom goes."""

from __future__ import annotations

from typing import Any

from ..core.regime import Regime, regime

# What they share: the smallest model, which has practised every way that has steps; a batch and a rate by search.
WARM: dict[str, Any] = {"warm_steps": 4000, "warm_batch": 32, "warm_lr": 2e-3}
RUN: dict[str, Any] = {"lr": 3e-4, "eval_every": 6, "eval_tasks": 100, "eval_samples": 1, "checkpoint_every": 1000}
BATCH: dict[str, Any] = {"groups": 16, "rollouts": 8}
SEARCH: dict[str, tuple[Any, ...]] = {"lr": (1e-4, 3e-4, 1e-3)}


def ways(**shares: float) -> dict[str, Any]:
    """The options of a task whose demonstrations go these ways, each as often as its share says."""
    return {"slowly": 0.0, "quickly": 0.0, "guess": 0.0, **shares, "practised": 0.7}


def beginnings(**shares: float) -> dict[str, str]:
    """The beginning of a completion by which each of these ways is forced."""
    return {way: f"<think> {way}" for way in shares}


@regime
def skill() -> Regime:
    """A careful way that is always right, a hasty one and a guess: which pays is to be found out.

    The start guesses or hurries in seven of ten cases, so greedily it is right no more often than a guess. What it
    does carefully is right. There is room to gain, speed to compare, and at too large a step a collapse to prevent.
    """
    shares = {"slowly": 0.3, "quickly": 0.3, "guess": 0.4}
    return Regime(
        task="digit_sum",
        task_options=ways(**shares),
        model="tiny-s",
        settings={**WARM, **RUN, "steps": 60},
        args=BATCH,
        ways=beginnings(**shares),
        search=SEARCH,
    )
