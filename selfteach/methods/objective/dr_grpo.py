"""Dr. GRPO."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import center
from ...credit.compose import each
from ...objective.policy import clipped_ratio
from ...objective.weigh import constant_length
from .grpo import policy_method


@method(
    family="objective",
    paper="2503.20783",
    claim=Claim(
        (Check("accuracy", "self", "grpo", by=0.03, relation="~"), Check("length", "self", "grpo", relation="<")),
        arms={"grpo": "grpo"},
        task="chain_sum",
        steps=40,
        because="dividing by length and by std rewards long wrong answers and easy questions; without them accuracy stays and answers shorten",
    ),
)
def dr_grpo(groups: int = 16, rollouts: int = 8, clip: float = 0.2, limit: int = 128) -> Method:
    """GRPO done right: no division by the group's std, none by the answer's length.

        A_i = r_i - mean(r)        loss = sum over tokens / (S * limit)

    Liu et al. 2025, section 3.1. `limit` is a constant, the longest answer allowed.
    """
    return policy_method(
        credit=(each(), center(by="group")),
        term=Term(clipped_ratio(low=clip, high=clip), weigh=constant_length(limit=limit)),
        groups=groups,
        rollouts=rollouts,
    )
