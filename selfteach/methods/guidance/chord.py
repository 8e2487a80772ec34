"""CHORD, by a global weight and by a weight per token."""

from __future__ import annotations

from ...core import Check, Claim, Method, Part, Term, Update, method
from ...curriculum.select import with_experts
from ...objective.likelihood import nll, uncertain_nll
from ...objective.policy import clipped_ratio
from ...objective.schedules import cosine
from ...objective.weigh import sequence_mean, token_mean
from ...rollout.single import read, single
from ..objective.grpo import grpo

MIXED = ("chord", {"phi": False, "mu": 0.5})


@method(
    family="guidance",
    paper="2508.11408",
    catalogue=355,
    claim=Claim(
        (
            Check("accuracy", "self", "grpo", by=0.0),
            Check("accuracy", "self", "mixed", by=0.0),
            Check("length", "self", "mixed", by=0.0, relation="<", scale="ratio"),
        ),
        arms={"grpo": "grpo", "mixed": MIXED},
        task="chain_sum",
        steps=40,
        because="an expert's tokens teach where the policy is unsure, and leave alone both what it masters and what is foreign to it",
    ),
)
def chord(
    groups: int = 16,
    rollouts: int = 8,
    batch: int = 32,
    pool: int = 512,
    style: str = "verbose",
    mu: float = 0.1,
    valley: float | None = None,
    decay: int = 0,
    phi: bool = True,
    clip: float = 0.2,
) -> Method:
    """Supervised learning as a weighted term inside on-policy RL: two streams in every step, rollouts and an expert's demonstrations.

        loss = (1 - mu) L_GRPO + mu L_SFT,   L_SFT = -mean over the expert's tokens of phi logp,  phi = p (1 - p) held constant (phi=False: 1)

    Zhang et al. 2025 and the released code: for CHORD-phi mu = 0.1 throughout, a fifth of the samples the expert's, no KL. mu falls from
    `mu` to `valley` along half a cosine over `decay` steps, where these are given. The expert: `pool` right demonstrations of the task, in
    one `style` where it shows several. Answers are weighed as in `grpo`, which this is at mu = 0.
    """
    main, expert = _coefficients(mu, mu if valley is None else valley, decay)
    terms = (
        Term(clipped_ratio(low=clip, high=clip), weigh=sequence_mean(), coef=main),
        Term(uncertain_nll() if phi else nll(), on=("sft",), weigh=token_mean(), coef=expert),
    )
    return grpo(groups=groups, rollouts=rollouts).but(
        select=with_experts(batch=batch, pool=pool, style=style),
        programs={"main": single(), "expert": read(learn="sft")},
        updates=(Update(("policy",), terms),),
    )


def _coefficients(mu: float, valley: float, decay: int) -> tuple[float | Part, float | Part]:
    if not decay:
        return 1.0 - mu, mu
    return cosine(start=1.0 - mu, stop=1.0 - valley, steps=decay), cosine(start=mu, stop=valley, steps=decay)


@method(
    family="guidance",
    paper="2508.11408",
    catalogue=355,
    claim=Claim(
        (Check("accuracy", "self", "grpo", by=0.0), Check("accuracy", "self", "mixed", by=0.0)),
        arms={"grpo": "grpo", "mixed": MIXED},
        task="chain_sum",
        steps=40,
        because="imitation is worth most at the beginning, and stands in the way of exploring later",
    ),
)
def chord_mu(groups: int = 16, rollouts: int = 8, batch: int = 32, pool: int = 512, mu: float = 0.9, valley: float = 0.05, decay: int = 20) -> Method:
    """CHORD-mu: every token of the expert alike, and the weight of the whole falls from 0.9 to 0.05 (over 200 steps there, `decay` here)."""
    return chord(groups=groups, rollouts=rollouts, batch=batch, pool=pool, mu=mu, valley=valley, decay=decay, phi=False)
