"""SPA-RL (2505.20732): an episode's return is attributed to its turns by a model whose turns sum to it.

A progress estimator gives every turn a number, trained so that the numbers of an episode sum to its return. These, and
a bonus for actions that could be carried out, are the rewards of the turns in PPO.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core import (
    Claim,
    Column,
    Method,
    ModelRole,
    Seq,
    Step,
    Term,
    Token,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..core.blocks import logged
from ..core.lazy import torch
from ..credit import segments as seg
from ..credit.advantages import whiten
from ..credit.composers import per_trajectory
from ..credit.returns import gae_shaped
from ..objective.schedules import after, before
from ..objective.segments import seq_sum
from .ppo import ppo


@method(family="credit", paper="2505.20732", catalogue=161)
def spa(
    groups: int = 128,
    rollouts: int = 1,
    alpha: float = 1.0,
    grounding: float = 0.5,
    estimator_steps: int = 6,
    online: bool = False,
    estimator_epochs: int = 3,
    estimator_lr: float = 1e-3,
    clip: float = 0.2,
    gamma: float = 0.99,
    lam: float = 0.95,
    beta: float = 0.0,
    critic_lr: float = 1e-3,
    minibatches: int = 1,
    critic_epochs: int = 4,
) -> Method:
    """PPO with a reward at every turn: its share of the return by a progress estimator, and a bonus where it could act.

        estimator:  (R_i - sum_k c_k)^2,   c_k a head on the last hidden state of turn k
        r_k       = alpha c_k + grounding g_k,   g_k = 1 where the action could be carried out
        PPO with r_k at the last token of turn k

    Wang et al. 2025, equations 2 to 5; alpha 1 and a bonus of 0.5 (the released data are made with it). The estimator
    is a model of its own, trained for the first `estimator_steps` steps on episodes of the starting policy, several
    epochs of 8 minibatches each; then it is left as it is, and PPO begins. online: it goes on learning beside PPO, for
    a start that seldom succeeds. A bonus of 0.5 a turn is more than success is worth where an episode has a dozen of
    turns that a policy can spend on anything. Chosen here: its head is on the hidden state where the released code has
    a linear map of the logits; the KL of the paper's PPO is `beta`, off in the regimes; gamma and lam are usual values
    (the configuration that their script names is not released; StepTool's of that name has a gamma of 0.99 and an
    adaptive KL from 0.3). PPO is online here: theirs is one epoch over episodes that the SFT agent played, with rewards
    written beforehand.

    Not followed: the released trainer multiplies r_k by the number of turns still to come, as StepTool's does, so that
    the last turn gets 0; here it is unscaled, as in the paper. The script that was released for one environment puts
    the return, less the mean of the task's other episodes, in place of the c_k; here it is the c_k, as in the paper.
    """
    base = ppo(
        groups=groups,
        rollouts=rollouts,
        clip=clip,
        lam=lam,
        gamma=gamma,
        critic_lr=critic_lr,
        minibatches=minibatches,
        critic_epochs=critic_epochs,
    )
    estimate = Update(
        ("estimator",),
        (Term(decomposed_return()),),
        epochs=estimator_epochs,
        minibatches=8,
        lr=estimator_lr,
        when=None if online else before(step=estimator_steps),
    )
    learn = tuple(replace(u, when=after(step=estimator_steps)) for u in base.stage.updates)
    return base.replace(
        credit=(
            per_trajectory(steps=("executable",)),
            attributed(alpha=alpha, grounding=grounding),
            *((with_kl(beta=beta),) if beta else ()),
            gae_shaped(gamma=gamma, lam=lam),
            whiten(),
        ),
        updates=(estimate, *learn),
    ).override(
        weights={"estimator": WeightSpec("start")}, models={"estimator": ModelRole(("estimator",), heads=("scalar",))}
    )


def turn_ends(step: torch.Tensor) -> torch.Tensor:
    """bool[N]: the last row of each turn; rows of a turn in order."""
    return torch.cat([step[1:] != step[:-1], torch.ones_like(step[:1], dtype=torch.bool)])


def attributed_return(
    *, estimator_scalar_after: torch.Tensor, step: torch.Tensor, seq: torch.Tensor, reward: torch.Tensor
) -> torch.Tensor:
    """f[S]: the sum of the numbers of an episode's turns."""
    return seq_sum(torch.where(turn_ends(step), estimator_scalar_after, 0.0), seq, len(reward))


@block
@logged("attributed", attributed_return)
def decomposed_return(*, estimator_scalar_after: Token, step: Token, seq: Token, reward: Seq) -> Seq:
    """Squared error of the sum of the turns' numbers (equation 3), each read after the turn's last token.

        l = (R - sum_k c_k)^2

    Logs the sums. Args: estimator_scalar_after f[N]; step, seq i64[N]; reward f[S]. Returns: l f[S]. Scope: seq.

    >>> c, at = torch.tensor([9.0, 0.25, 0.5]), torch.tensor([0, 0, 1])  # two turns; 9 is inside the first
    >>> decomposed_return(estimator_scalar_after=c, step=at, seq=torch.zeros_like(at), reward=torch.ones(1))
    tensor([0.0625])
    """
    found = attributed_return(estimator_scalar_after=estimator_scalar_after, step=step, seq=seq, reward=reward)
    return (reward - found) ** 2


@block
@provides("token_reward")
def attributed(
    *, estimator_scalar_after: Token, executable: Step, step: Token, alpha: float = 1.0, grounding: float = 0.5
) -> dict[str, Column]:
    """The reward of each turn at its last token: its share of the return, and a bonus where it could be carried out.

        r_k = alpha c_k + grounding g_k

    Args: estimator_scalar_after f64[N]; executable f64[K], NaN: unknown, no bonus; step i64[N].
    Returns: token_reward f64[N], 0 inside a turn.

    >>> turns = {"step": [0, 0, 1], "executable": [1.0, 0.0]}
    >>> attributed(estimator_scalar_after=[9.0, 0.25, 0.5], **turns)["token_reward"].values
    array([0.  , 0.75, 0.5 ])
    """
    step = np.asarray(step)
    ends = seg.last(step, len(executable))
    ends, turns = ends[ends >= 0], np.flatnonzero(ends >= 0)
    out = np.zeros(len(step))
    bonus = np.nan_to_num(np.asarray(executable, np.float64))[turns]
    out[ends] = alpha * np.asarray(estimator_scalar_after, np.float64)[ends] + grounding * bonus
    return {"token_reward": Column("token", out)}


@block
@provides("token_reward")
def with_kl(*, token_reward: Token, old_logp: Token, ref_logp: Token, beta: float = 0.05) -> dict[str, Column]:
    """A reward at every token less a penalty: r_t - beta (old_logp_t - ref_logp_t).

    Args: token_reward, old_logp, ref_logp f64[N]. Returns: token_reward f64[N].
    """
    penalty = np.asarray(old_logp, np.float64) - np.asarray(ref_logp, np.float64)
    return {"token_reward": Column("token", np.asarray(token_reward, np.float64) - beta * penalty)}


PPO = {"minibatches": 1, "critic_epochs": 4}

spa.claim = Claim(
    (
        premise("accuracy", "ppo", "start", by=0.05, fails_at=0.96),  # PPO learns here
        # turns that shorten the way to the goal get more credit than others, by the shares alone: the bonus, for
        # turns that could be carried out, tells them apart by itself
        mechanism("mean:policy/step_auc", "no_bonus", 0.5, by=0.05, fails_at=0.5),
        mechanism("late:reward/executable", "self", "no_bonus", by=0.01, fails_at=0.99),
        outcome("accuracy", "self", "ppo", by=0.03, fails_at=0.98),
        outcome("accuracy", "no_bonus", "ppo", by=0.03, fails_at=0.98),
        outcome("auc", "self", "ppo", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "no_bonus", by=0.01, fails_at=0.995),
    ),
    arms={
        "ppo": ("ppo", {**PPO, "gamma": 0.99, "lam": 0.95}),
        "no_bonus": ("spa", {**PPO, "grounding": 0.0, "online": True}),
    },
    args={**PPO, "grounding": 0.1, "online": True},  # less is not seen in what the policy does, more costs successes
    regime="turns_practised",
    settings={"steps": 60, "eval_every": 6},
    idea=("main.credit*", "main.update.*", "models.*", "weights.*"),
    because="what each turn adds to the return is known to a model that had to say it turn by turn, where a critic of"
    " sparse returns has to find it by itself",
)
