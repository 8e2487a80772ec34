"""RLSC (Li et al. 2025, arXiv 2506.06395) on SmolLM2: what a pre-trained model holds likely of the real world."""

from __future__ import annotations

from ..core import Claim, outcome, premise
from .rlsc import FEW, SHARPENS

EXPERIMENTS = {
    "smollm2": Claim(
        (
            # what it mostly says is right more often than one answer is
            premise("early:reward/label", "self", "accuracy of start", by=0.02, fails_at=0.99),
            SHARPENS,
            outcome("accuracy", "self", "start", by=0.05, fails_at=0.96),
            outcome("greedy", "self", "start", by=0.03, relation=">=", fails_at=1.0),
            outcome("auc", "self", "even", by=0.02, fails_at=0.99),
        ),
        arms={"even": ("rlsc", {**FEW, "smooth": 10.0})},
        args=FEW,
        regime="real_language",
        idea=("main.credit",),
        because="a pre-trained model is confident of what is right, so that to sharpen it is to make it more accurate",
    )
}
