"""M2PO."""

from __future__ import annotations

from typing import Literal

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import norm
from ...objective.bounds import bounded_moment
from ...objective.weigh import token_mean
from .grpo import late, policy_method

STALE = {"sync": 20, "minibatches": 4}  # up to 79 updates old


@method(
    family="objective",
    paper="2510.01161",
    catalogue=248,
    claim=Claim(
        (
            Check("accuracy", "self", "fresh", by=-0.02),
            Check("accuracy", "self", "grpo", by=0.05),
            Check("accuracy", "self", "unbounded", by=0.05),
        ),
        arms={"fresh": ("m2po", {"sync": 1}), "grpo": ("grpo", STALE), "unbounded": ("m2po", {"budget": 1e9})},
        task="chain_sum",
        steps=40,
        because="stale samples teach as much as fresh ones if only the few tokens that make the importance weights' variance are left out",
    ),
)
def m2po(
    groups: int = 16,
    rollouts: int = 8,
    budget: float = 0.04,
    form: Literal["remove", "cap"] = "remove",
    low: float = 0.0,
    high: float = 0.0,
    minibatches: int = 4,
    sync: int = 20,
    delay: int = 0,
) -> Method:
    """Second-moment trust: of the tokens that an update pushes further away, those with the largest log-ratios are left out until the mean
    square of the others is within a budget, instead of clipping each by itself.

        loss = -sum over tokens of M r A / their number,   mean of (log r)^2 over {M, and A > 0, r > 1 or A < 0, r < 1} <= budget

    Zheng et al. 2025, algorithm 1, per minibatch. form="cap", low=0.3, high=0.5 is the released code. Samples are up to
    `sync` - 1 steps old, each of `minibatches` updates, or exactly `delay` steps (the paper's protocol, 256 updates).
    """
    return policy_method(
        credit=(late(delay), norm()),
        term=Term(bounded_moment(budget=budget, form=form, low=low, high=high), weigh=token_mean()),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
        sync=sync,
    )
