"""GSPO."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...objective.policy import sequence_ratio
from .grpo import policy_method


@method(
    family="objective",
    paper="2507.18071",
    claim=Claim(
        (Check("accuracy", "self", "grpo", by=0.0),),
        arms={"grpo": ("grpo", {"minibatches": 4})},
        task="chain_sum",
        steps=40,
        because="the ratio of a sequence has the unit of its reward, and less variance than its tokens' ratios",
    ),
)
def gspo(groups: int = 16, rollouts: int = 8, low: float = 3e-4, high: float = 4e-4, minibatches: int = 4) -> Method:
    """Group sequence policy optimisation: one importance ratio per sequence, the geometric mean of its tokens', clipped as a whole.

        s_i = exp(mean over tokens of (logp - old_logp))        loss_i = -min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i)

    Zheng et al. 2025, equations 5 to 7; four minibatches a batch as there.
    """
    return policy_method(
        credit=(each(), norm()),
        term=Term(sequence_ratio(low=low, high=high)),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
    )
