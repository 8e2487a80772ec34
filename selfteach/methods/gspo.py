"""GSPO (2507.18071): importance ratios of whole sequences.

The reward is that of a sequence, and so is the importance ratio: the geometric mean of the tokens' ratios, clipped as a
whole.
"""

from __future__ import annotations

from ..core import Claim, Method, Term, method, unsorted
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.policy import sequence_ratio
from .base import policy_method


@method(family="objective", paper="2507.18071")
def gspo(
    groups: int = 16,
    rollouts: int = 8,
    low: float = 3e-4,
    high: float = 4e-4,
    epochs: int = 1,
    minibatches: int = 4,
) -> Method:
    """Group sequence policy optimisation: one importance ratio per sequence, the geometric mean of its tokens'.

        s_i    = exp(mean over tokens of (logp - old_logp))
        loss_i = -min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i)

    Zheng et al. 2025, equations 5 to 7; four minibatches per batch, as there.
    """
    return policy_method(
        credit=(per_trajectory(), norm()),
        term=Term(sequence_ratio(low=low, high=high)),
        groups=groups,
        rollouts=rollouts,
        epochs=epochs,
        minibatches=minibatches,
    )


gspo.claim = Claim(
    (unsorted("accuracy", "self", "grpo", by=0.0),),
    arms={"grpo": ("grpo", {"minibatches": 4})},
    task="chain_sum",
    steps=40,
    because="the ratio of a sequence has the unit of its reward, and less variance than its tokens' ratios",
)
