"""ROVER."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import center
from ...credit.compose import each
from ...objective.bellman import uniform_bellman
from ...objective.weigh import token_mean
from .grpo import policy_method


@method(
    family="objective",
    paper="2509.24981",
    catalogue=37,
    claim=Claim(
        (
            Check("accuracy", "self", "grpo", by=-0.01),
            Check("pass@64", "self", "grpo", by=0.0),
            Check("distinct@64", "self", "grpo", by=0.0),
            Check("late:nats", "self", "grpo", by=0.0),
        ),
        arms={"grpo": ("grpo", {"minibatches": 4})},
        task="countdown",
        steps=40,
        because="the value of acting at random is above 0 wherever a success lies below, so its softmax keeps every way that leads to one",
    ),
)
def rover(groups: int = 16, rollouts: int = 8, rho: float = 1.0, ahead: float = 1.0, minibatches: int = 4) -> Method:
    """Random policy valuation: learn the Q-values of the uniform policy, carried by the policy's own log-ratios, and sample from their softmax.

        Q(a|s) = rho (log pi(a|s) - log pi_old(a|s)),   Q(a_t|s_t) <- r - mean(r) + mean over the vocabulary of Q(.|s_{t+1})

    He et al. 2025, algorithm 1: the group-centred reward is paid at every token, four minibatches a batch; no clip, KL or std. Q is 0
    where an update begins, so in its first minibatch the gradient is the policy gradient: what is new shows in the later ones.
    """
    return policy_method(
        credit=(each(), center(by="group")),
        term=Term(uniform_bellman(rho=rho, ahead=ahead), weigh=token_mean()),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
    )
