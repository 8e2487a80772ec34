"""Supervised fine-tuning."""

from __future__ import annotations

from ...core import Check, Claim, Method, Stage, Term, Update, method
from ...credit.compose import each
from ...curriculum.select import demonstrations
from ...objective.likelihood import nll
from ...objective.weigh import token_mean
from ...rollout.single import read, single


@method(
    family="guidance",
    paper="supervised learning",
    claim=Claim(
        (Check("accuracy", "self", "start", by=0.0),), task="chain_sum", steps=40, because="the control that every method here is measured against"
    ),
)
def sft(batch: int = 64) -> Method:
    """Maximum likelihood of the task's demonstrations: -logp, mean over the tokens of a batch. The warm start is this method."""
    return Method(
        stages=(
            Stage(
                select=demonstrations(),
                programs={"main": read()},
                reward=(),
                credit=(each(),),
                updates=(Update(("policy",), (Term(nll(), weigh=token_mean()),)),),
                groups=batch,
                rollouts=1,
                data=True,
            ),
        ),
        decode={"answer": single()},
    )
