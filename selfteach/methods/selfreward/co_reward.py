"""Co-Reward."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ...core import Check, Claim, Method, method
from ...curriculum.select import reworded
from ...reward.answer import exact_match
from ...reward.vote import cross_vote, majority_vote
from ..objective.grpo import grpo

LABELS = {"cross": cross_vote(judge=exact_match()), "own": majority_vote(judge=exact_match(), ties="none"), "gold": exact_match()}


@method(
    family="selfreward",
    paper="2508.00410",
    catalogue=85,
    claim=Claim(
        (
            Check("accuracy", "self", "gold", by=-0.03),
            Check("accuracy", "self", "own", by=0.03),
            Check("late:reward/label", "self", "own", by=0.0),
        ),
        arms={"own": ("co_reward", {"labels": "own"}), "gold": ("co_reward", {"labels": "gold"})},
        task="chain_sum",
        knobs={"reworded": 0.5, "noise": 0.25},  # about half of the answers are right to begin with, and most votes
        steps=40,
        because="an answer pays only where the other wording of the question votes for it too, which no trick on one wording does",
    ),
)
def co_reward(
    groups: int = 16, rollouts: int = 8, labels: Literal["cross", "own", "gold"] = "cross", beta: float = 0.001, lr: float | None = 2e-5
) -> Method:
    """Co-Reward: every question is asked in two wordings, and each is paid by the other's majority answer.

        r_i = 1[answer_i = majority(answers to x')],   r'_j = 1[answer'_j = majority(answers to x)];   GRPO on each, clip 0.2, a small KL

    Zhang et al. 2025, equations 4 and 5. `groups` counts both wordings; those of chain_sum and countdown are templates, the paper's a
    larger model's. A tie is no label. labels: whose vote pays: the other wording's (cross), one's own (TTRL's), or the label (gold); the
    label is otherwise read for figures alone. beta is not known to us; this one is small. The later version's slow teacher is left out.
    """
    base = grpo(groups=groups, rollouts=rollouts, beta=beta)
    (update,) = base.stage.updates
    return base.but(select=reworded(), reward=(LABELS[labels],), updates=(replace(update, lr=lr),))
