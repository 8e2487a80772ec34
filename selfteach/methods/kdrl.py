"""KDRL (Xu et al. 2025, arXiv 2506.02208): on-policy knowledge distillation and RL in one loss.

The reverse KL to a teacher, on the student's own rollouts, is added to the loss of GRPO.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..core import (
    BadValue,
    Claim,
    Column,
    Method,
    ModelRole,
    Seq,
    Stage,
    Term,
    Token,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..credit import segments as seg
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..curriculum.select import experts
from ..objective.kl import Kind, kl
from ..objective.likelihood import nll
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from ..objective.schedules import linear
from ..rollout.single import read, single
from .base import policy_method


@method(family="guidance", paper="2506.02208", catalogue=101)
def kdrl(
    groups: int = 16,
    rollouts: int = 8,
    teacher: str = "",
    teacher_steps: int = 100,
    batch: int = 32,
    teacher_lr: float = 1e-3,
    style: str = "",
    beta: float = 5e-3,
    beta_min: float = 1e-3,
    anneal_steps: int = 80,
    kind: Literal["k1", "k2", "k3"] = "k2",
    mask: Literal["none", "seq", "group"] = "none",
    rewarded: bool = True,
    clip: float = 0.2,
) -> Method:
    """GRPO plus, on the same rollouts, the reverse KL to a teacher, from its log-probabilities of the student's tokens.

        loss = mean over tokens of -min(r A, clip(r, 1 - clip, 1 + clip) A) + beta k2
        k2   = (logp - teacher_logp)^2 / 2
        beta   linear from `beta` to `beta_min` in `anneal_steps` steps

    Xu et al. 2025: the joint loss, no KL to a reference, token mean, annealing from 5e-3 to 1e-3 by 5e-5 a step. `mask`
    is reward-guided masking: the KL is on wrong answers only ("seq"), or on prompts that no rollout solved ("group");
    that its mean is then still over all tokens, not over those that are left, is our reading (no code was released).
    rewarded=False is distillation alone. The teacher is a model at a path, or else trained in a first stage of
    `teacher_steps` steps: the start, on `batch` right demonstrations of the task a step (in one `style`); the student
    is frozen there. The teacher gives one number a token: no matrix over the vocabulary.
    """
    trains_teacher = not teacher
    coef = linear(start=beta, stop=beta_min, steps=anneal_steps, after=teacher_steps if trains_teacher else 0)
    teacher_kl = (kl(kind=kind) if mask == "none" else kl_where(kind=kind)).reading(ref_logp="teacher_logp")
    distil = (Term(teacher_kl, loss_weights=token_mean(), coef=coef),) if beta or beta_min else ()
    base = policy_method(
        credit=(per_trajectory(), *(() if mask == "none" else (mark_wrong(by=mask),)), norm()),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=token_mean(), coef=float(rewarded)),
        more=distil,
        groups=groups,
        rollouts=rollouts,
    ).override(
        weights={"teacher": WeightSpec(teacher or "start")},
        models={"teacher": ModelRole(("teacher",))},
        decode={"teacher": single(model_role="teacher")},
    )
    if not trains_teacher:
        return base
    supervised = Update(("teacher",), (Term(nll(), loss_weights=token_mean()),), lr=teacher_lr)
    teacher_stage = Stage(
        name="teacher",
        select=experts(style=style),
        programs={"main": read()},
        reward=(),
        credit=(per_trajectory(model_role="teacher"),),
        updates=(supervised,),
        groups=batch,
        rollouts=1,
        until=teacher_steps,
        data=True,
    )
    return base.override(stages=(teacher_stage, *base.stages))


@block
def kl_where(
    *, logp: Token, ref_logp: Token, where: Token, kind: Kind = "k2", grad: Literal["value", "k1", "k2", "k3"] = "value"
) -> Token:
    """`kl` times a mask, 0 on the rows where `where` is 0.

    Args: logp, ref_logp, where f[N]. Returns: l f[N].
    """
    return where * kl(logp=logp, ref_logp=ref_logp, kind=kind, grad=grad)


@block
def mark_wrong(
    *, reward: Seq, group: Seq, by: Literal["seq", "group"] = "seq", right: float = 1.0
) -> dict[str, Column]:
    """The reward-guided mask: 1 for sequences, or groups, that did not solve the task, else 0.

        where_i = 1[r_i < right]                            by="seq"
        where_i = 1[r_j < right for all j of the group]     by="group"

    Args: reward f64[S]; group i64[S].
    Returns: where f64[S], 1 or 0; NaN where a reward that it depends on is unknown. Scope: group.

    >>> mark_wrong(reward=[1, 0, 0, 0], group=[0, 0, 1, 1], by="group")["where"].values
    array([0., 0., 1., 1.])
    """
    if by not in ("seq", "group"):
        raise BadValue(f"mark_wrong: by must be seq or group, not {by!r}")
    reward = np.asarray(reward, np.float64)
    best = reward if by == "seq" else seg.greatest(reward, np.asarray(group), seg.count(group))[group]
    return {"where": Column("seq", np.where(np.isnan(best), np.nan, best < right))}


TEACHER_STEPS = 100
# At a tenth of this coefficient, the paper's, a loss over thirty tokens is not seen beside the reward's.
TEACHER = {"teacher_steps": TEACHER_STEPS, "batch": 128, "beta": 0.05, "beta_min": 0.01}

kdrl.claim = Claim(
    (
        # the teacher knows more than rewards alone come to teach, and they leave something to be learned sooner
        premise("accuracy+teacher", "self", "accuracy of rl", by=0.02, fails_at=0.99),
        premise("auc", "rl", 0.85, relation="<", fails_at=0.9),
        # the student comes near the teacher: the annealed coefficient alone would be less than by half smaller
        mechanism(
            "late:policy/loss/kl",
            "self",
            "early:policy/loss/kl of self",
            by=0.7,
            relation="<",
            scale="ratio",
            fails_at=0.0,
        ),
        outcome("accuracy", "self", "rl", by=0.02, fails_at=0.99),
        outcome("auc", "self", "rl", by=0.05, fails_at=0.96),
        outcome("accuracy", "self", "distilled", by=0.01, fails_at=1.0),
        outcome("accuracy", "self", "k3", by=0.01, fails_at=1.0),
    ),
    args=TEACHER,
    arms={
        "rl": ("kdrl", {**TEACHER, "beta": 0.0, "beta_min": 0.0}),
        "distilled": ("kdrl", {**TEACHER, "rewarded": False}),
        "k3": ("kdrl", {**TEACHER, "kind": "k3"}),
    },
    regime="tutored",
    settings={"steps": 60 + TEACHER_STEPS},
    idea=("main.update*",),
    first_seed=500,
    corrected="on seeds 200 to 207 the student was also to be better than its teacher, which the paper's is not: "
    "does not hold here; on 300 to 307 the teacher had learned from the demonstrations of `ladder`, of which none of "
    "eight digits is without an estimate, and was right in 55 % where RL alone is in nine of ten cases, so that it "
    "could not help: does not hold here; on 400 to 407 it had 60 steps to learn in, which left one of eight at 55 %: "
    "not tested here",
    because="the teacher gives a signal for every token, and the reward is not bounded by the teacher",
)
