"""Dr. GRPO (2503.20783): GRPO without its two biases.

Division by the group's std gives easy and hard prompts more weight, division by the answer's length favours long wrong
answers. Without either the policy gradient is unbiased.
"""

from __future__ import annotations

from ..core import Claim, Method, Term, method, unsorted
from ..credit.advantages import center
from ..credit.composers import per_trajectory
from ..objective.loss_weights import constant_length
from ..objective.policy import clipped_ratio
from .base import policy_method


@method(family="objective", paper="2503.20783")
def dr_grpo(groups: int = 16, rollouts: int = 8, clip: float = 0.2, limit: int = 128) -> Method:
    """GRPO done right: no division by the group's std, and none by the answer's length.

        A_i = r_i - mean(r)
        loss = -sum over tokens of min(r A, clip(r, 1 - clip, 1 + clip) A) / (S limit)

    Liu et al. 2025, section 3.1. S is the number of sequences, `limit` a constant, the maximal length of an answer.
    """
    return policy_method(
        credit=(per_trajectory(), center(by="group")),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=constant_length(limit=limit)),
        groups=groups,
        rollouts=rollouts,
    )


dr_grpo.claim = Claim(
    (unsorted("accuracy", "self", "grpo", by=0.03, relation="~"), unsorted("length", "self", "grpo", relation="<")),
    arms={"grpo": "grpo"},
    task="chain_sum",
    steps=40,
    because=(
        "dividing by length and by std rewards long wrong answers and easy questions; without them accuracy "
        "stays and answers shorten"
    ),
)
