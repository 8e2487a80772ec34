"""CISPO."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...objective.policy import clipped_importance
from ...objective.weigh import token_mean
from .grpo import policy_method


@method(
    family="objective",
    paper="2506.13585",
    claim=Claim(
        (Check("accuracy", "self", "grpo", by=0.0),),
        arms={"grpo": ("grpo", {"minibatches": 4})},
        task="chain_sum",
        steps=40,
        because="no token's gradient is dropped: the weight is clipped, not the update",
    ),
)
def cispo(groups: int = 16, rollouts: int = 8, low: float = 1.0, high: float = 4.0, minibatches: int = 4) -> Method:
    """Clipped importance-sampling policy optimisation: the ratio is a constant weight, clipped; every token keeps its gradient.

        loss = -stop(clip(r, 1 - low, 1 + high)) A logp, mean over the tokens of the batch

    MiniMax 2025 (M1), equations 4 and 5; low 1 leaves the lower side open, as there.
    """
    return policy_method(
        credit=(each(), norm()),
        term=Term(clipped_importance(low=low, high=high), weigh=token_mean()),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
    )
