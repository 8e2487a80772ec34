"""AAPO, advantage-augmented policy optimisation (Xiong et al. 2025, arXiv 2505.14264).

A group whose rewards are equal has no group-relative advantage. What is added is how much better an answer is than one
that the frozen reference gave to the same prompt, clipped, so that such groups teach something too.

    A_i = (r_i - mean r) / (std r + 1e-4) + clip(r_i - r_i^ref, -low, high)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import (
    Block,
    Claim,
    Column,
    Method,
    Ref,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    Seq,
    Term,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..core.tagged_text import last_between
from ..credit.advantages import center, norm
from ..credit.composers import per_trajectory
from ..objective.loss_weights import token_mean
from ..objective.policy import policy_gradient
from ..reward.answer import exact_match
from ..reward.answer_verdicts import judge_answers
from ..rollout.beside_reference import REFERENCE, beside_reference
from ..rollout.single import single
from .base import policy_method


@method(family="credit", paper="2505.14264", catalogue=278)
def aapo(
    groups: int = 16,
    rollouts: int = 8,
    low: float = 0.2,
    high: float = 0.28,
    margin: bool = True,
    scale: bool = True,
) -> Method:
    """REINFORCE on group-relative advantages plus the clipped margin of each answer over one of the reference.

        A_i  = (r_i - mean r) / (std r + 1e-4) + clip(r_i - r_i^ref, -low, high)
        loss = -mean over tokens of A logp

    Xiong et al. 2025 and the released code: the i-th answer is paired with the i-th answer of the frozen reference to
    the same prompt, judged by the same reward; one update a batch, without ratios, clip and KL; the bounds are those of
    the code (of its two trainers one scores the prompt as the reference's answer, by a slice; the other is as here).
    margin=False leaves the reference out, which samples half as much; scale=False the division by the standard
    deviation. Chosen here: the rewards are those of the task (there format and length too). Metric: reward/reference,
    the mean reward of the reference's answers.
    """
    plain = norm(eps=1e-4) if scale else center()
    base = policy_method(
        credit=(per_trajectory(), reference_margin(low=low, high=high, scale=scale) if margin else plain),
        term=Term(policy_gradient(), loss_weights=token_mean()),
        groups=groups,
        rollouts=rollouts,
    )
    if not margin:
        return base
    return base.replace(programs={"main": beside_reference()}, reward=(paired_rewards(judge=exact_match()),)).override(
        decode={"main": single()}
    )


@block
@provides("reference_reward")
async def paired_rewards(
    *, group: RolloutGroup, context: RewardContext, deadline: float, judge: Block | None = None, role: str = REFERENCE
) -> Scores:
    """The reward of each answer, and as the column `reference_reward` that of the answer it is paired with.

    judge: a judge of answers (exact_match unless given); the other's answer is its text in <answer>, else all of it.
    Both columns stand at the end of the policy's answer, whose part `reference` is the other's reward too.
    """
    own: dict[str, Ref] = {}
    answers: list[tuple[Ref, Any]] = []
    others: dict[str, Ref] = {}
    for episode in group.episodes:
        for t in episode.trajectories:
            if t.learn is not None:
                own[episode.id] = t.leaf
                answers.append((t.leaf, episode.answer))
            elif t.role == role:
                others[episode.id] = t.leaf
                text = context.text(t.leaf)
                answers.append((t.leaf, last_between(text, "answer", text.strip())))
    scores = await judge_answers(judge, group, answers, context, deadline)
    out: Scores = {"reward": {}, "reference_reward": {}}
    for episode, leaf in own.items():
        mine, theirs = scores[leaf], scores[others[episode]] if episode in others else Score(None)
        parts = {} if theirs.value is None else {"reference": theirs.value}
        out["reward"][leaf] = Score(mine.value, {**mine.parts, **parts}, mine.why, mine.error)
        out["reference_reward"][leaf] = Score(theirs.value, error=theirs.error)
    return out


@block
def reference_margin(
    *,
    reward: Seq,
    reference_reward: Seq,
    group: Seq,
    low: float = 0.2,
    high: float = 0.28,
    scale: bool = True,
    eps: float = 1e-4,
) -> dict[str, Column]:
    """The group-relative advantage plus the clipped margin of an answer's reward over that of its reference answer.

        A_i = (r_i - mean r) / (std r + eps) + clip(r_i - r_i^ref, -low, high)

    Args: reward, reference_reward f64[S]; group i64[S]. scale: without it there is no division. Returns: adv f64[S];
    where the reference's reward is unknown the margin is 0. Scope: group.

    >>> reference_margin(reward=[1.0, 1.0], reference_reward=[0.0, 1.0], group=[0, 0])["adv"].values
    array([0.28, 0.  ])
    """
    plain = (norm(reward=reward, group=group, eps=eps) if scale else center(reward=reward, group=group))["adv"].values
    margin = np.asarray(reward, np.float64) - np.asarray(reference_reward, np.float64)
    return {"adv": Column("seq", plain + np.where(np.isnan(reference_reward), 0.0, np.clip(margin, -low, high)))}


aapo.claim = Claim(
    (
        # the baseline's groups come to be all right, and teach nothing
        premise("late:rollout/mixed_group_fraction", "plain", 0.7, relation="<", fails_at=0.8),
        # of the same batch more tokens carry a gradient
        mechanism("late:policy/rows", "self", "plain", by=0.2, scale="ratio", fails_at=1e6),
        outcome("auc", "self", "plain", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "plain", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "grpo", relation=">=", by=0.03, fails_at=1.0),
    ),
    arms={"plain": ("aapo", {"margin": False}), "grpo": "grpo"},
    regime="ladder",
    idea=("main.program.main", "main.reward.0", "main.credit*", "main.update.0.term.0", "decode.main"),
    because="the margin over a reference answer is a signal where all answers of a group are as good",
)
