"""Sharpening (Huang et al. 2024, arXiv 2412.01951) on SmolLM2: the likeliest of its answers about the real world."""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise

EXPERIMENTS = {
    "smollm2": Claim(
        (
            # among samples of the base model the likeliest is right more often than one
            premise("mean:reward/best", "self", "mean:reward/right of self", by=0.05, fails_at=1.0),
            mechanism("mean:reward/auc", "self", 0.6, by=0.0, fails_at=0.5),
            outcome("accuracy", "self", "start", by=0.05, fails_at=0.96),
            # one pass does what a search of eight samples does
            outcome("accuracy", "self", "accuracy+best of start", by=0.05, relation=">=", fails_at=1.0),
            outcome("accuracy", "rlhf", "start", by=0.05, fails_at=0.96),
            outcome("accuracy", "one", "start", by=0.03, relation="<=", fails_at=0.0),  # nothing is searched
        ),
        arms={
            "rlhf": ("sharpening", {"groups": 8, "rollouts": 8, "by": "rlhf"}),
            "one": ("sharpening", {"groups": 8, "rollouts": 1}),
        },
        settings={"final_eval_decoder_samples": 2},
        regime="real_language",
        idea=("main.credit*", "main.update.0.term.0", "main.rollouts"),
        because="a pre-trained model holds more likely what is right, and can learn to say that at once",
    )
}
