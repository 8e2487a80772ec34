"""Sharpening (Huang et al. 2024, arXiv 2412.01951) on a model of real language, as an experiment of `sharpening`."""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise

BATCH = {"groups": 8, "rollouts": 8}

EXPERIMENTS = {
    "real_language": Claim(
        (
            premise("mean:reward/best", "self", "mean:reward/right of self", by=0.1, fails_at=1.0),
            mechanism("mean:reward/auc", "self", 0.7, by=0.0, fails_at=0.55),
            outcome("accuracy", "self", "start", by=0.1, fails_at=0.9),
            outcome("accuracy", "self", "accuracy+best of start", by=0.05, relation=">=", fails_at=1.0),
            outcome("accuracy", "one", "start", by=0.05, relation="<=", fails_at=0.0),  # one sample finds nothing
        ),
        arms={"one": ("sharpening", {**BATCH, "rollouts": 1})},
        regime="real_language",
        args=BATCH,
        settings={"final_eval_decoder_samples": 2},  # a search is of eight samples
        idea=("main.rollouts",),
        because="the likeliest of some samples of a model of real language is right more often than any, and can be "
        "learned",
    ),
}
