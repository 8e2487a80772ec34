"""BARL on answers to questions, whose hypotheses are what a group's answers say."""

from __future__ import annotations

from ..core import Claim, mechanism, outcome, premise

EXPERIMENTS = {
    "answers": Claim(
        (
            premise("accuracy", "grpo", "start", by=0.2, fails_at=0.85),  # there is something to learn
            premise("mean:reward/steps", "self", 1.5, fails_at=1.0),  # answers do have steps
            # a policy that works out a question comes to believe in what is right
            mechanism("late:reward/belief_last", "self", "late:reward/belief_first of self", by=0.1, fails_at=1.0),
            mechanism("mean:policy/step_auc", "self", 0.5, by=0.02, fails_at=0.5),
            outcome("auc", "self", "grpo", by=0.03, fails_at=0.98),
            outcome("accuracy", "self", "grpo", by=0.02, fails_at=0.99),
            outcome("length_right", "self", "grpo", by=0.1, relation="<", scale="ratio", fails_at=0.0),
            outcome("auc", "self", "one_hypothesis", by=0.02, fails_at=0.99),
        ),
        arms={
            "grpo": "grpo",
            "one_hypothesis": ("barl", {"hypotheses": 0}),
            "uncorrected": ("barl", {"kappa": 0.0}),
        },
        regime="verbose",
        idea=("main.reward*", "main.credit*"),
        because="a step is worth what it tells apart, so that what only repeats what is known is not paid for",
    ),
}
