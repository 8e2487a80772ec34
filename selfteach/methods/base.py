"""The common base of methods: one stage with one update of the policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ..core import Block, Method, ModelRole, Stage, Term, Update, WeightSpec
from ..credit.composers import per_trajectory
from ..credit.replay import delayed
from ..curriculum.select import demonstrated_answers, experts, uniform
from ..objective.likelihood import nll
from ..objective.loss_weights import prompt_mean, sequence_mean, token_mean
from ..reward.answer import exact_match
from ..rollout.judgement import read_judgement
from ..rollout.single import read, single


def delayed_trajectories(delay: int) -> Block:
    """The composer of each trajectory of this step, or where `delay` is above 0, of `delay` updates ago."""
    return delayed(updates=delay) if delay else per_trajectory()


def tokens_over(over: Literal["batch", "group", "sequence"]) -> Block:
    """Loss weights: the mean over the tokens of the batch, or of each group (or sequence) and over these."""
    return {"batch": token_mean, "group": prompt_mean, "sequence": sequence_mean}[over]()


def policy_method(
    credit: tuple[Block, ...],
    term: Term,
    more: tuple[Term, ...] = (),
    groups: int = 16,
    rollouts: int = 8,
    epochs: int = 1,
    minibatches: int = 1,
    select: Block | None = None,
    sync: int = 1,
) -> Method:
    """A method of one stage with one update of the policy: single-turn answers, rewarded by exact match.

    Args:
        credit    the composer, then assigners
        term      the loss term; more: further ones
        select    the select block; None: `uniform`
        sync      steps between two weight syncs to the sampler; above 1, samples are up to sync - 1 steps old
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


def imitation_stage(
    name: str, until: int, pool: int, batch: int, style: str = "", slips: bool = False, lr: float | None = None
) -> Stage:
    """`until` steps of supervised learning of the policy, each on `batch` of an expert's demonstrations (`experts`)."""
    return Stage(
        name=name,
        select=experts(pool=pool, style=style, slips=slips),
        programs={"main": read()},
        reward=(),
        credit=(per_trajectory(),),
        updates=(Update(("policy",), (Term(nll(), loss_weights=token_mean()),), lr=lr),),
        groups=batch,
        rollouts=1,
        until=until,
        data=True,
    )


def with_verifier(
    method: Method,
    minibatches: int,
    lr: float,
    rule: Block | None = None,
    written: bool = True,
    noise: float = 0.0,
    question: bool = False,
    size: int = 32,
) -> Method:
    """The method after a first stage of one step in which a second model, `verifier`, learns to verify answers.

    It starts from the run's model and learns the verdicts of the task's own judge, of which a share `noise` are turned
    into the other, on demonstrated answers (those alone that `rule` rejects, where one is given) and on `written` ones,
    to the same questions and to those of training: `minibatches` of `size` answers, twice, then at a fifth of the rate.
    """
    first = Stage(
        name="distil",
        select=demonstrated_answers(judge=exact_match(), rule=rule, written=written),
        programs={"main": read_judgement(judge=exact_match(), noise=noise, question=question)},
        reward=(),
        credit=(per_trajectory(model_role="verifier"),),
        updates=tuple(
            Update(
                ("verifier",),
                (Term(nll(), on=("verifier",), loss_weights=token_mean()),),
                minibatches=minibatches,
                lr=lr * share,
            )
            for share in (1.0, 0.2)
        ),
        groups=size * minibatches,
        rollouts=1,
        until=1,
        data=True,
    )
    second = method.override(weights={"verifier": WeightSpec()}, models={"verifier": ModelRole(("verifier",))})
    return replace(second, stages=(first, *second.stages))
