"""Regimes on translation between two made languages, where the policy can judge what it is to learn."""

from __future__ import annotations

from typing import Any

from ..core.regime import Regime, regime
from .digits import BATCH, RUN, SEARCH, beginnings

SETTINGS: dict[str, Any] = {
    **RUN,
    "warm_practice_steps": 1200,
    "warm_steps": 300,
    "warm_batch": 32,
    "warm_lr": 2e-3,
    "steps": 60,
}
# The start mostly translates at once, and seldom well.
WAYS: dict[str, Any] = {"slowly": 0.2, "loosely": 0.12, "literally": 0.2, "quickly": 0.48}


@regime
def judged_by_itself() -> Regime:
    """Translation in ways of which a judge that the start knows overlooks the faults of one, and a metric of another.

    The start judges whether nouns and verbs are right at their place, and not adjectives; a way that leaves these to
    chance looks right to it. To a comparison of words, their order left out, a way that keeps the order looks right.
    """
    return Regime(
        task="translation",
        task_options=WAYS,
        model="tiny-s",
        settings=SETTINGS,
        args=BATCH,
        ways=beginnings(*WAYS),
        search=SEARCH,
    )


@regime
def refined_by_itself() -> Regime:
    """Translation where the start can judge every word, and translates better after a judgement than at once."""
    return Regime(
        task="translation",
        task_options={**WAYS, "judged": 0.2, "refined": 0.2, "overlooked": False},
        model="tiny-s",
        settings={**SETTINGS, "warm_practice_steps": 5000},  # refinements are long, and have to be learned as well
        args=BATCH,
        ways=beginnings(*WAYS),
        search=SEARCH,
    )
