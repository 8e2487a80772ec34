"""RLSC (Li et al. 2025, arXiv 2506.06395) on a model of real language, as an experiment of `rlsc`."""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise

BATCH = {"groups": 8, "rollouts": 8}

EXPERIMENTS = {
    "real_language": Claim(
        (
            premise("greedy", "start", "accuracy of start", by=0.1, fails_at=0.99),  # what is likely is true more often
            mechanism(
                "late:policy/entropy_estimate",
                "self",
                "early:policy/entropy_estimate of self",
                by=0.3,
                relation="<",
                scale="ratio",
                fails_at=0.0,
            ),
            outcome("accuracy", "self", "start", by=0.1, fails_at=0.9),
            # without any label, nearly what labels give
            outcome("accuracy", "self", "labelled", by=0.05, relation=">=", fails_at=1.0),
            outcome("greedy", "self", "start", by=0.02, fails_at=0.99),
        ),
        arms={"labelled": "grpo"},
        regime="real_language",
        args=BATCH,
        idea=("main.*",),
        because="a model of real language holds what is true for likelier, so that to be surer of it is to be right "
        "more often, without a label",
    ),
}
