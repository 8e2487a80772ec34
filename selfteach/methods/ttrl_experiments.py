"""TTRL (Zuo et al. 2025, arXiv 2504.16084) on a model of real language, as an experiment of `ttrl`.

There the vote of eight samples is right less often than the greedy answer, which the paper's models are too good for.
"""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise

BATCH = {"groups": 8, "votes": 8, "keep": 8, "questions": 300}

EXPERIMENTS = {
    "real_language": Claim(
        (
            premise("mean:reward/label", "self", "accuracy of start", by=0.1, fails_at=0.9),
            # the reward agrees with the label that it does not know
            mechanism("mean:reward/hit", "self", 0.7, by=0.0, fails_at=0.6),
            outcome("accuracy", "self", "start", by=0.1, fails_at=0.9),
            outcome("accuracy", "self", "maj of start", by=0.02, fails_at=0.99),
            outcome("accuracy", "self", "labelled", by=0.05, relation="~", fails_at=0.5),
        ),
        arms={"labelled": ("ttrl", {**BATCH, "labels": True})},
        regime="real_language",
        args=BATCH,
        idea=("main.reward",),
        because="what a model of real language answers most often is right more often than an answer of it, and is a "
        "label that costs nothing",
    ),
}
