"""CHORD (Zhang et al. 2025, arXiv 2508.11408): supervised fine-tuning as a weighted term inside on-policy RL.

The loss on an expert's demonstrations has one weight for all its tokens (mu) and one for each token (phi).
"""

from __future__ import annotations

from typing import Any

from ..core import (
    Block,
    Claim,
    Method,
    RolloutGroup,
    RolloutRequest,
    TaskSource,
    Term,
    Token,
    Update,
    block,
    method,
    stateful,
    unsorted,
)
from ..curriculum.select import experts, uniform
from ..objective.likelihood import nll
from ..objective.loss_weights import sequence_mean, token_mean
from ..objective.policy import clipped_ratio
from ..objective.schedules import cosine
from ..rollout.single import read, single
from .grpo import grpo


@method(family="guidance", paper="2508.11408", catalogue=355)
def chord(
    groups: int = 16,
    rollouts: int = 8,
    batch: int = 32,
    pool: int = 512,
    style: str = "verbose",
    mu: float = 0.1,
    mu_valley: float | None = None,
    mu_decay_steps: int = 0,
    phi: bool = True,
    clip: float = 0.2,
) -> Method:
    """GRPO and, as a second loss stream in every step, supervised fine-tuning on an expert's demonstrations.

        loss  = (1 - mu) L_GRPO + mu L_SFT
        L_SFT = -mean over the expert's tokens of phi logp
        phi   = p (1 - p), held constant        phi=False: 1

    Zhang et al. 2025 and the released code: for CHORD-phi mu = 0.1 throughout, a fifth of the samples the expert's, no
    KL. mu falls from `mu` to `mu_valley` along half a cosine over `mu_decay_steps` steps, where these are given. The
    expert: `pool` right demonstrations of the task, in one `style` where it shows several. Answers are weighted as in
    `grpo`, which this is at mu = 0.
    """
    main, expert = _coefficients(mu, mu if mu_valley is None else mu_valley, mu_decay_steps)
    terms = (
        Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean(), coef=main),
        Term(uncertain_nll() if phi else nll(), on=("sft",), loss_weights=token_mean(), coef=expert),
    )
    return grpo(groups=groups, rollouts=rollouts).replace(
        select=with_experts(batch=batch, pool=pool, style=style),
        programs={"main": single(), "expert": read(learn="sft")},
        updates=(Update(("policy",), terms),),
    )


@method(family="guidance", paper="2508.11408", catalogue=355)
def chord_mu(
    groups: int = 16,
    rollouts: int = 8,
    batch: int = 32,
    pool: int = 512,
    mu: float = 0.9,
    mu_valley: float = 0.05,
    mu_decay_steps: int = 20,
) -> Method:
    """CHORD-mu: `chord` without phi, and with mu decayed from 0.9 to 0.05.

    The decay takes 200 steps in the paper, `mu_decay_steps` here.
    """
    return chord(
        groups=groups,
        rollouts=rollouts,
        batch=batch,
        pool=pool,
        mu=mu,
        mu_valley=mu_valley,
        mu_decay_steps=mu_decay_steps,
        phi=False,
    )


def _coefficients(mu: float, mu_valley: float, mu_decay_steps: int) -> tuple[float | Block, float | Block]:
    """The coefficients of the two terms, 1 - mu and mu, as numbers or schedules."""
    if not mu_decay_steps:
        return 1.0 - mu, mu
    return cosine(start=1.0 - mu, stop=1.0 - mu_valley, steps=mu_decay_steps), cosine(
        start=mu, stop=mu_valley, steps=mu_decay_steps
    )


@block
def uncertain_nll(*, logp: Token) -> Token:
    """Negative log-likelihood weighted by CHORD's phi: -sg(p (1 - p)) logp, p = exp(logp).

    The weight is largest at p = 1/2 and 0 at p = 0 and 1, so that tokens that the policy has learned already, or that
    are far from it, count little; it is constant to the gradient.

    Args: logp f[N]. Returns: l f[N].

    >>> import torch
    >>> uncertain_nll(logp=torch.tensor([0.5, 0.9]).log())  # 1/4 log 2, 0.09 * 0.1054
    tensor([0.1733, 0.0095])
    """
    p = logp.detach().exp()
    return -p * (1 - p) * logp


@block
@stateful(lambda: {"asked": 0, "taken": 0, "seen": 0, "known": []})
def with_experts(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: dict[str, Any],
    batch: int = 32,
    pool: int = 512,
    style: str = "",
    program: str = "expert",
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """The next `n` tasks as in `uniform`, and `batch` demonstrations as in `experts`, for the program `program`."""
    requests, count = uniform(
        n=n, rollouts=rollouts, finished_rounds=finished_rounds, source=source, seed=seed, state=state["asked"]
    )
    demonstrations, state = experts(
        n=batch, finished_rounds=finished_rounds, source=source, state=state, pool=pool, style=style, program=program
    )
    return [*requests, *demonstrations], {**state, "asked": count}


MIXED = ("chord", {"phi": False, "mu": 0.5})  # the control of both claims: phi = 1 and a constant mu

chord.claim = Claim(
    (
        unsorted("accuracy", "self", "grpo", by=0.0),
        unsorted("accuracy", "self", "mixed", by=0.0),
        unsorted("length", "self", "mixed", by=0.0, relation="<", scale="ratio"),
    ),
    arms={"grpo": "grpo", "mixed": MIXED},
    task="chain_sum",
    steps=40,
    because="the expert's tokens have an effect where the policy is uncertain, and little where it is not",
)

chord_mu.claim = Claim(
    (unsorted("accuracy", "self", "grpo", by=0.0), unsorted("accuracy", "self", "mixed", by=0.0)),
    arms={"grpo": "grpo", "mixed": MIXED},
    task="chain_sum",
    steps=40,
    because="imitation helps most at the beginning, and hinders exploration later",
)
