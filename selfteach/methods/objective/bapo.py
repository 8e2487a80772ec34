"""BAPO."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import norm
from ...objective.bounds import balanced_clip
from ...objective.weigh import token_mean
from .grpo import late, policy_method
from .m2po import STALE


@method(
    family="objective",
    paper="2510.18927",
    catalogue=281,
    claim=Claim(
        (
            Check("accuracy", "self", "grpo", by=0.05),
            Check("late:nats", "self", "grpo", by=0.0),
            Check("late:nats", "self", "early:nats of self", by=-0.5, scale="ratio"),
            Check("accuracy", "fresh", "fresh_grpo", by=0.03, relation="~"),
        ),
        arms={"grpo": ("grpo", STALE), "fresh": ("bapo", {"sync": 1}), "fresh_grpo": ("grpo", {"minibatches": 4})},
        task="chain_sum",
        steps=40,
        because="on stale samples bad tokens outweigh good ones and a fixed clip drops the unlikely good; bounds that balance the two keep entropy",
    ),
)
def bapo(
    groups: int = 16,
    rollouts: int = 8,
    target: float = 0.5,
    low: float = 0.6,
    low_most: float = 0.9,
    high: float = 1.2,
    high_most: float = 3.0,
    step: float = 0.05,
    minibatches: int = 4,
    sync: int = 20,
    delay: int = 0,
) -> Method:
    """Balanced policy optimisation: in each minibatch the two bounds of PPO's clip are searched until what is good has its share of the loss.

        share = P / (P + N) >= target;   first `low` is raised, then `high`;   loss = -min(r A, clip(r, low, high) A), at most -3 A where A < 0

    Xi et al. 2025, algorithm 1: bounds within [0.6, 0.9] and [1.2, 3.0], a share of 1/2; the step is that of the released code.
    Samples are up to `sync` - 1 steps old, each of `minibatches` updates, or exactly `delay` steps.
    """
    return policy_method(
        credit=(late(delay), norm()),
        term=Term(balanced_clip(target=target, low=low, low_most=low_most, high=high, high_most=high_most, step=step), weigh=token_mean()),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
        sync=sync,
    )
