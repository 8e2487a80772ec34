"""LaSeR (another paper's LASER-D is the method laser_d)."""

from __future__ import annotations

from ...core import Check, Claim, Method, Term, method
from ...credit.baseline import norm
from ...credit.confidence import self_mixed
from ...credit.views import each_probed
from ...objective.policy import clipped_ratio
from ...objective.regression import verdict_regression
from ...objective.schedules import from_step
from ...objective.weigh import class_balanced, sequence_mean
from ...reward.answer import exact_match
from ...reward.likely import probed
from ...rollout.vote import sampled_vote
from ..objective.grpo import policy_method


@method(
    family="selfreward",
    paper="2510.14943",
    catalogue=15,
    claim=Claim(
        (
            Check("accuracy", "self", "grpo", by=-0.02),
            Check("late:reward/accepts", "self", 0.5, by=0.1),
            Check("late:reward/rejects", "self", 0.5, by=0.1),
            Check("accuracy+weighted_vote", "self", "accuracy+vote of self", by=0.0),
        ),
        arms={"grpo": "grpo"},
        task="chain_sum",
        steps=40,
        because="one number read after the end tells the policy what it thinks of its answer, at the price of a single token",
    ),
)
def laser(
    groups: int = 16,
    rollouts: int = 8,
    beta: float = 0.1,
    base: float = -20.0,
    alpha: float = 0.1,
    share: float = 0.1,
    gate: float = 0.1,
    verify_from: int = 8,
    mix_from: int = 16,
    k: int = 8,
) -> Method:
    """Last-token self-rewarding: the log-probability of a reserved token after the end is taught to say whether the answer is right.

        s = beta (log pi(z | x, y) - base)        loss = GRPO + alpha mean_i w_i (s_i - r_i)^2,   w balances right and wrong answers
        A <- (1 - share) A + share (clip(s, 0, 1) normalised in its group), where its std there is above `gate`

    Yang et al. 2025, equations 10 to 13. z is a token that no text spells; `base` is its mean log-probability before training (the paper: -23.0
    for Qwen2.5-7B), logged as reward/level: it saves a pass of the reference, and where it is off the policy learns the difference too.
    The paper begins the regression after 200 of 1000 steps and the mixture 200 later, here `verify_from` and `mix_from`. An answer that
    did not end by itself is not asked about and counts as 0. decode: `vote`, and `weighted_vote` in which each sample weighs its own s.
    """
    verify = Term(verdict_regression(beta=beta, base=base), on=("verify",), weigh=class_balanced(), coef=from_step(step=verify_from, value=alpha))
    return (
        policy_method(
            credit=(each_probed(), norm(), self_mixed(share=share, gate=gate, step=mix_from)),
            term=Term(clipped_ratio(), weigh=sequence_mean()),
            more=(verify,),
            groups=groups,
            rollouts=rollouts,
        )
        .but(reward=(probed(reward=exact_match(), beta=beta, base=base),))
        .with_(decode={"vote": sampled_vote(k=k), "weighted_vote": sampled_vote(k=k, weighted=True, beta=beta, base=base)})
    )
