"""Supervised fine-tuning on a task's demonstrations: the warm start of every run, and a baseline of the methods."""

from __future__ import annotations

from ..core import Claim, Method, Stage, Term, Update, method, unsorted
from ..credit.composers import per_trajectory
from ..curriculum.select import demonstrations
from ..objective.likelihood import nll
from ..objective.loss_weights import token_mean
from ..rollout.single import read, single


@method(family="guidance", paper="supervised learning")
def sft(batch: int = 64) -> Method:
    """Maximum likelihood of the task's demonstrations.

        loss = mean over the tokens of a batch of -logp

    The warm start is this method.
    """
    return Method(
        stages=(
            Stage(
                select=demonstrations(),
                programs={"main": read()},
                reward=(),
                credit=(per_trajectory(),),
                updates=(Update(("policy",), (Term(nll(), loss_weights=token_mean()),)),),
                groups=batch,
                rollouts=1,
                data=True,
            ),
        ),
        decode={"answer": single()},
    )


sft.claim = Claim(
    (unsorted("accuracy", "self", "start", by=0.0),),
    task="chain_sum",
    steps=40,
    because="the baseline that every method here is compared with",
)
