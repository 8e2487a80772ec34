"""The common base of methods: one stage with one update of the policy."""

from __future__ import annotations

from typing import Literal

from ..core import BadValue, Block, Method, Stage, Term, Update
from ..credit.composers import per_trajectory
from ..credit.replay import delayed
from ..curriculum.select import uniform
from ..objective.loss_weights import prompt_mean, token_mean
from ..reward.answer import exact_match
from ..rollout.single import single


def delayed_trajectories(delay: int) -> Block:
    """The composer of each trajectory of this step, or where `delay` is above 0, of `delay` updates ago."""
    return delayed(updates=delay) if delay else per_trajectory()


def tokens_over(over: Literal["batch", "group"]) -> Block:
    """Loss weights of a token-level loss: the mean over the tokens of the batch, or of each group and over groups."""
    if over not in ("batch", "group"):
        raise BadValue(f"over must be batch or group, not {over!r}")
    return token_mean() if over == "batch" else prompt_mean()


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
