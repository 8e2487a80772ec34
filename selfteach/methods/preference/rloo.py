"""REINFORCE and RLOO (Back to Basics)."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import center, moving_baseline
from ...credit.compose import each
from ...credit.shaping import kl_in_reward
from ...objective.policy import policy_gradient
from ...objective.weigh import sequence_sum
from ..objective.grpo import policy_method


@method(
    family="preference",
    paper="2402.14740",
    catalogue=338,
    claim=Claim(
        (Check("accuracy", "self", "ppo", by=0.0), Check("accuracy", "self", "reinforce", by=0.0)),
        arms={"ppo": ("ppo", {"groups": 128}), "reinforce": "reinforce"},
        task="chain_sum",
        steps=40,
        because="the whole answer is one action, and its siblings are an unbiased baseline: critic, GAE and clipping buy nothing",
    ),
)
def rloo(groups: int = 32, rollouts: int = 4, beta: float = 0.0) -> Method:
    """REINFORCE with a leave-one-out baseline: each answer against the mean of its siblings.

        A_i = R_i - mean of R_j over j != i        loss = -A_i * sum over tokens of logp        R = r - beta * sum(logp - ref_logp)

    Ahmadian et al. 2024, section 3. One on-policy step a batch: no ratio, no clipping. The paper's beta is 0.03 to 0.1.
    """
    return policy_method(
        credit=(each(), *((kl_in_reward(beta=beta),) if beta else ()), center(by="leave_one_out")),
        term=Term(policy_gradient(), weigh=sequence_sum()),
        groups=groups,
        rollouts=rollouts,
    )


@method(family="preference", paper="2402.14740", catalogue=338)
def reinforce(groups: int = 128, rollouts: int = 1, beta: float = 0.0) -> Method:
    """REINFORCE over whole answers, against the mean of all batches so far.

    A_i = R_i - b,  b = mean over earlier batches of their mean reward (Ahmadian et al. 2024, section 3.1)
    """
    return policy_method(
        credit=(each(), *((kl_in_reward(beta=beta),) if beta else ()), moving_baseline()),
        term=Term(policy_gradient(), weigh=sequence_sum()),
        groups=groups,
        rollouts=rollouts,
    )
