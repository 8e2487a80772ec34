"""NFT."""

from __future__ import annotations

from typing import Literal

from ...core import Check, Claim, Method, Term, method
from ...credit.compose import each
from ...credit.keep import keep_informative
from ...credit.values import success_rate
from ...objective.likelihood import implicit_negative
from ...objective.weigh import constant_length
from .grpo import policy_method


@method(
    family="objective",
    paper="2505.18116",
    catalogue=106,
    claim=Claim(
        (
            Check("accuracy", "self", "rft", by=0.03),
            Check("accuracy", "self", "grpo", by=-0.02),
            Check("late:nats", "self", "rft", by=0.0),
        ),
        arms={"rft": ("nft", {"neg_weight": 0.0}), "grpo": ("grpo", {"minibatches": 4})},
        task="chain_sum",
        steps=40,
        because="supervision learns from its own failures too, once they are the likelihood of the policy that remains beside the good one",
    ),
)
def nft(
    groups: int = 16,
    rollouts: int = 8,
    neg_weight: float = 1.0,
    floor: float = 1.0,
    scale: Literal["none", "center", "norm"] = "center",
    limit: int = 128,
    minibatches: int = 4,
) -> Method:
    """Negative-aware fine-tuning: right answers by likelihood, wrong ones by that of the policy which, mixed with this one, gives the sampler.

        loss = -w [r log R + neg_weight (1 - r) log((1 - q R) / (1 - q))],   R = pi / pi_old per token, q the rate of right answers

    Chen et al. 2025, equation 10, with the constants of the released training script: the second ratio is held at `floor` or above (its
    gradient passes), q in [0.02, 0.98], w = 1 - q. Groups of one kind are left out, not replaced. neg_weight=0 is rejection
    fine-tuning; scale="norm" has on-policy the gradient of GRPO. Rewards are 0 or 1. The sum over tokens is divided by `limit` (1000 there).
    """
    return policy_method(
        credit=(each(), keep_informative(), success_rate()),
        term=Term(implicit_negative(neg_weight=neg_weight, floor=floor, scale=scale), weigh=constant_length(limit=limit)),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
    )
