"""TruthRL (Wei et al. 2025, arXiv 2509.25760) on SmolLM2: what a pre-trained model does not know of the real world."""

from __future__ import annotations

from ..core import Claim, premise
from .truthrl import TERNARY

EXPERIMENTS = {
    "smollm2": Claim(
        (
            premise("late:reward/wrong", "binary", 0.3, fails_at=0.1),  # without the third value it guesses
            *TERNARY,
        ),
        arms={"binary": ("truthrl", {"abstained": -1.0})},
        args={"abstained": 0.0},
        regime="real_unknown",
        idea=("main.reward",),
        because="where a wrong answer and an abstention have the same reward, guessing costs nothing; where they do "
        "not, the policy answers what it knows",
    )
}
