"""GRPO, and what other libraries mean by the name."""

from __future__ import annotations

from ...core import Check, Claim, Method, Part, Stage, Term, Update, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...credit.replay import delayed
from ...curriculum.select import uniform
from ...objective.kl import kl
from ...objective.policy import clipped_ratio
from ...objective.weigh import sequence_mean, sequence_sum, token_mean
from ...reward.answer import exact_match
from ...rollout.single import single


@method(
    family="objective",
    paper="2402.03300",
    claim=Claim(
        (Check("accuracy", "self", "start", by=0.05),), task="chain_sum", steps=40, because="a group is baseline enough: no critic is trained"
    ),
)
def grpo(
    groups: int = 16,
    rollouts: int = 8,
    clip: float = 0.2,
    beta: float = 0.0,
    epochs: int = 1,
    minibatches: int = 1,
    sync: int = 1,
    delay: int = 0,
) -> Method:
    """Group relative policy optimisation: a group's mean and standard deviation stand in for a critic.

        A_i = (r_i - mean(r)) / std(r)        loss = mean over sequences of the mean over tokens of -min(r A, clip(r) A) + beta k3(ref)

    Shao et al. 2024, equations 3 and 4; the paper's beta is 0.04. Here std is over n - 1, and a group of equals teaches exactly nothing.
    sync, delay: train on stale samples, the baseline of methods that are made for them (see `late`).
    """
    return policy_method(
        credit=(late(delay), norm()),
        term=Term(clipped_ratio(low=clip, high=clip), weigh=sequence_mean()),
        more=(Term(kl(kind="k3"), weigh=sequence_mean(), coef=beta),) if beta else (),
        groups=groups,
        rollouts=rollouts,
        epochs=epochs,
        minibatches=minibatches,
        sync=sync,
    )


def late(delay: int) -> Part:
    """What is learned from: each trajectory of this step, or (delay) of so many updates ago."""
    return delayed(updates=delay) if delay else each()


def policy_method(
    credit: tuple[Part, ...],
    term: Term,
    more: tuple[Term, ...] = (),
    groups: int = 16,
    rollouts: int = 8,
    epochs: int = 1,
    minibatches: int = 1,
    select: Part | None = None,
    sync: int = 1,
) -> Method:
    """One stage, one update of the policy: what the methods of this family share. Single-turn answers, scored by exact match.

    sync: updates between two deliveries of weights to the sampler; above 1, samples are up to sync - 1 updates old.
    """
    return Method(
        stages=(
            Stage(
                select=select or uniform(),
                programs={"main": single()},
                reward=(exact_match(),),
                credit=credit,
                updates=(Update(("policy",), (term, *more), epochs=epochs, minibatches=minibatches),),
                groups=groups,
                rollouts=rollouts,
                sync=sync,
            ),
        )
    )


@method(family="objective", paper="2402.03300")
def grpo_trl(groups: int = 16, rollouts: int = 8) -> Method:
    """GRPO as TRL means it by default: std over n - 1 with 1e-4 added, tokens weighed alike over the batch, no KL."""
    return grpo(groups=groups, rollouts=rollouts).but(
        credit=(each(), norm(eps=1e-4)), updates=(Update(("policy",), (Term(clipped_ratio(), weigh=token_mean()),)),)
    )


@method(family="objective", paper="2402.03300")
def grpo_verl(groups: int = 16, rollouts: int = 8) -> Method:
    """GRPO as verl means it by default: 1e-6 added to the std, a group of one keeps its raw reward, tokens weighed alike, dual clip at 3."""
    return grpo(groups=groups, rollouts=rollouts).but(
        credit=(each(), norm(eps=1e-6, singleton="raw")), updates=(Update(("policy",), (Term(clipped_ratio(dual=3.0), weigh=token_mean()),)),)
    )


@method(family="objective", paper="2402.03300")
def grpo_sum(groups: int = 16, rollouts: int = 8) -> Method:
    """GRPO with each sequence's tokens summed, not averaged: a long answer weighs as much as its tokens."""
    return grpo(groups=groups, rollouts=rollouts).but(updates=(Update(("policy",), (Term(clipped_ratio(), weigh=sequence_sum()),)),))
