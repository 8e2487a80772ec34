"""KDRL: a teacher's distribution inside RL."""

from __future__ import annotations

from typing import Literal

from ...core import Check, Claim, Member, Method, Stage, Term, Update, Weights, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...credit.marks import mark_wrong
from ...curriculum.select import experts
from ...objective.kl import kl, kl_where
from ...objective.likelihood import nll
from ...objective.policy import clipped_ratio
from ...objective.schedules import linear
from ...objective.weigh import token_mean
from ...rollout.single import read
from ..objective.grpo import policy_method


@method(
    family="guidance",
    paper="2506.02208",
    catalogue=101,
    claim=Claim(
        (
            Check("accuracy", "self", "rl", by=0.02),
            Check("accuracy", "self", "distilled", by=0.01),
            Check("accuracy", "self", "k3", by=0.0),
        ),
        arms={
            "rl": ("kdrl", {"beta": 0.0, "floor": 0.0}),
            "distilled": ("kdrl", {"reward": False}),
            "k3": ("kdrl", {"kind": "k3"}),
        },
        task="chain_sum",
        steps=140,
        because="the teacher says of every token what the reward says once at the end, and the reward goes beyond the teacher",
    ),
)
def kdrl(
    groups: int = 16,
    rollouts: int = 8,
    teacher: str = "",
    lessons: int = 100,
    batch: int = 32,
    teacher_lr: float = 1e-3,
    style: str = "",
    beta: float = 5e-3,
    floor: float = 1e-3,
    anneal: int = 80,
    kind: Literal["k1", "k2", "k3"] = "k2",
    mask: Literal["none", "seq", "group"] = "none",
    reward: bool = True,
    clip: float = 0.2,
) -> Method:
    """GRPO, and on the same answers the reverse KL to a teacher, whose log-probabilities of the student's own tokens are all it asks.

        loss = mean over tokens of -min(r A, clip(r) A) + beta k2,   k2 = (logp - teacher_logp)^2 / 2,   beta from `beta` to `floor` in
        `anneal` steps

    Xu et al. 2025: the joint loss, no KL to a reference, token mean, annealing from 5e-3 to 1e-3 by 5e-5 a step. `mask` is reward-guided: the
    teacher is heard on wrong answers only ("seq"), or on prompts that nobody solved ("group"). reward=False is distillation alone.
    The teacher is a model at a path, or else one made in a first stage, of `lessons` steps: the start, taught `batch` right demonstrations
    of the task a step (in one `style`); the student learns nothing there. One number a token comes from it: no matrix over the vocabulary.
    """
    own = not teacher
    coef = linear(start=beta, stop=floor, steps=anneal, after=lessons if own else 0)
    heard = (kl(kind=kind) if mask == "none" else kl_where(kind=kind)).reading(ref_logp="teacher_logp")
    distil = (Term(heard, weigh=token_mean(), coef=coef),) if beta or floor else ()
    base = policy_method(
        credit=(each(), *(() if mask == "none" else (mark_wrong(by=mask),)), norm()),
        term=Term(clipped_ratio(low=clip, high=clip), weigh=token_mean(), coef=float(reward)),
        more=distil,
        groups=groups,
        rollouts=rollouts,
    ).with_(weights={"teacher": Weights(teacher or "start")}, cast={"teacher": Member(("teacher",))})
    if not own:
        return base
    taught = Update(("teacher",), (Term(nll(), weigh=token_mean()),), lr=teacher_lr)
    school = Stage(
        name="teacher",
        select=experts(style=style),
        programs={"main": read()},
        reward=(),
        credit=(each(member="teacher"),),
        updates=(taught,),
        groups=batch,
        rollouts=1,
        until=lessons,
        data=True,
    )
    return Method(stages=(school, *base.stages), weights=base.weights, cast=base.cast)
