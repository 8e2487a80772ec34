"""PPO (1707.06347) with a critic.

A learned value of every token's state gives an advantage per token by generalised advantage estimation, and the clipped
ratio bounds how far several minibatch updates may move the policy.
"""

from __future__ import annotations

from ..core import Claim, Method, ModelRole, Term, Update, WeightSpec, method, unsorted
from ..credit.advantages import whiten
from ..credit.composers import per_trajectory
from ..credit.returns import gae, gae_shaped, kl_per_token
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from ..objective.value import value_loss
from .base import policy_method


@method(family="objective", paper="1707.06347")
def ppo(
    groups: int = 128,
    rollouts: int = 1,
    clip: float = 0.2,
    lam: float = 1.0,
    gamma: float = 1.0,
    critic_lr: float = 1e-3,
    minibatches: int = 4,
    beta: float = 0.0,
) -> Method:
    """Proximal policy optimisation: a separate critic values every sampled token's state, and GAE gives advantages.

        A_t = sum_l (gamma lam)^l delta_{t+l},   delta_t = r_t + gamma V_{t+1} - V_t
        policy: -min(r A, clip(r) A)
        critic: (V - R)^2,   R_t = A_t + V_t before whitening

    Schulman et al. 2017, equations 7, 9 and 11. GAE runs over sampled tokens only; advantages are whitened over the
    batch. The critic has its own update and learning rate; its loss is not halved (equation 9), and the gradient clip
    applies to the gradient of the whole square. No groups are needed: one answer a prompt. beta: a KL penalty to the
    reference in the reward of every token, as in RLHF (2203.02155, equation 2).
    """
    shaped = (kl_per_token(beta=beta), gae_shaped(gamma=gamma, lam=lam))
    returns = shaped if beta else (gae(gamma=gamma, lam=lam),)
    base = policy_method(
        credit=(per_trajectory(), *returns, whiten()),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=token_mean()),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
    )
    critic = Update(
        ("critic",), (Term(value_loss(), loss_weights=token_mean()),), minibatches=minibatches, lr=critic_lr
    )
    return base.replace(updates=(critic, *base.stage.updates)).override(
        weights={"critic": WeightSpec("start")}, models={"critic": ModelRole(("critic",), heads=("value",))}
    )


ppo.claim = Claim(
    (unsorted("accuracy", "self", "start", by=0.05),),
    task="chain_sum",
    steps=40,
    because="a learned value is a baseline for every token",
)
