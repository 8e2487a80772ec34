"""TTRL (Zuo et al. 2025, arXiv 2504.16084) on SmolLM2: its own votes on questions about the real world as labels."""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise

EXPERIMENTS = {
    "smollm2": Claim(
        (
            premise("early:reward/label", "self", "accuracy of start", by=0.02, fails_at=0.99),  # votes are better
            mechanism("early:reward/hit", "self", 0.7, by=0.0, fails_at=0.6),  # the reward agrees with the label
            outcome("accuracy", "self", "maj of start", by=0.02, fails_at=0.99),
            outcome("accuracy", "self", "labelled", by=0.05, relation="~", fails_at=0.5),
        ),
        arms={"labelled": ("ttrl", {"groups": 8, "labels": True})},
        args={"groups": 8},
        regime="real_language",
        idea=("main.reward",),
        because="the majority of a pre-trained model's answers is a label that is right often enough to learn from",
    )
}
