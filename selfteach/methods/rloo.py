"""RLOO and REINFORCE (Back to Basics, 2402.14740): the whole answer as one action.

A pretrained model is a strong initial policy, so that critic, GAE and clip are not needed: the policy gradient of whole
answers with the leave-one-out baseline is unbiased and of low variance.

    b_i = mean of R_j over j != i
"""

from __future__ import annotations

from ..core import Claim, Method, Term, mechanism, method, outcome, premise
from ..credit.advantages import center, moving_baseline
from ..credit.composers import per_trajectory
from ..credit.shaping import kl_in_reward
from ..objective.loss_weights import sequence_sum
from ..objective.policy import policy_gradient
from .base import policy_method


@method(family="preference", paper="2402.14740", catalogue=338)
def rloo(groups: int = 32, rollouts: int = 4, beta: float = 0.03) -> Method:
    """REINFORCE with a leave-one-out baseline: each answer's reward less the mean of its siblings'.

        R    = r - beta sum_t (logp - ref_logp)
        A_i  = R_i - mean of R_j over j != i
        loss = mean over answers of -A_i sum_t logp

    Ahmadian et al. 2024, section 3. One on-policy step per batch: no ratio, no clipping. The paper's beta is 0.03 for
    summaries and 0.1 for dialogue; its PPO has the same (`ppo(beta=...)`). Theirs is paid by reward models of human
    preferences, here by what the run rewards.
    """
    return policy_method(
        credit=(per_trajectory(), *((kl_in_reward(beta=beta),) if beta else ()), center(by="leave_one_out")),
        term=Term(policy_gradient(), loss_weights=sequence_sum()),
        groups=groups,
        rollouts=rollouts,
    )


@method(family="preference", paper="2402.14740", catalogue=338)
def reinforce(groups: int = 128, rollouts: int = 1, beta: float = 0.03) -> Method:
    """REINFORCE over whole answers, with the mean reward of all earlier batches as the baseline.

        R   = r - beta sum_t (logp - ref_logp)
        A_i = R_i - b
        b   = mean over earlier batches of their mean reward

    Ahmadian et al. 2024, section 3.1.
    """
    return policy_method(
        credit=(per_trajectory(), *((kl_in_reward(beta=beta),) if beta else ()), moving_baseline()),
        term=Term(policy_gradient(), loss_weights=sequence_sum()),
        groups=groups,
        rollouts=rollouts,
    )


rloo.claim = Claim(
    (
        premise("mean:rollout/mixed_group_fraction", "self", 0.3, fails_at=0.2),  # siblings tell something
        # the gradient varies less around the mean of a prompt than around that of all prompts
        mechanism("mean:policy/grad_norm", "self", "reinforce", relation="<", scale="ratio", by=0.1, fails_at=0.0),
        outcome("accuracy", "self", "ppo", by=0.02, fails_at=0.99),
        outcome("auc", "self", "reinforce", by=0.02, fails_at=0.99),
        outcome("auc", "self", "ppo", by=0.02, fails_at=0.99),
    ),
    arms={"ppo": ("ppo", {"minibatches": 1, "critic_epochs": 4}), "reinforce": ("reinforce", {"beta": 0.0})},
    args={"beta": 0.0},
    regime="offset",  # rewards differ between prompts, so that a baseline for each matters
    idea=("main.credit", "main.update", "models", "weights"),
    because=(
        "the whole answer is one action, and its siblings are an unbiased baseline: critic, GAE and clipping"
        " buy nothing"
    ),
)
