"""PPO with a critic."""

from __future__ import annotations

from ...core import Check, Claim, Member, Method, Term, Update, Weights, method
from ...credit.baseline import whiten
from ...credit.compose import each
from ...credit.returns import gae
from ...objective.policy import clipped_ratio
from ...objective.value import value_loss
from ...objective.weigh import token_mean
from .grpo import policy_method


@method(
    family="objective",
    paper="1707.06347",
    claim=Claim(
        (Check("accuracy", "self", "start", by=0.05),),
        task="chain_sum",
        steps=40,
        because="a learned value is a baseline for every token",
    ),
)
def ppo(
    groups: int = 128, rollouts: int = 1, clip: float = 0.2, lam: float = 1.0, gamma: float = 1.0, critic_lr: float = 1e-3, minibatches: int = 4
) -> Method:
    """Proximal policy optimisation: a critic of its own values every chosen token's state; GAE runs over chosen tokens only.

        A_t = sum_l (gamma lam)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t        loss = -min(r A, clip(r) A);  critic: (V - R)^2 / 2

    Schulman et al. 2017, equations 7 and 11; advantages are whitened over the batch. No groups are needed: one answer a question.
    """
    base = policy_method(
        credit=(each(), gae(gamma=gamma, lam=lam), whiten()),
        term=Term(clipped_ratio(low=clip, high=clip), weigh=token_mean()),
        groups=groups,
        rollouts=rollouts,
        minibatches=minibatches,
    )
    critic = Update(("critic",), (Term(value_loss(), weigh=token_mean()),), minibatches=minibatches, lr=critic_lr)
    return base.but(updates=(critic, *base.stage.updates)).with_(
        weights={"critic": Weights("start")}, cast={"critic": Member(("critic",), heads=("value",))}
    )
