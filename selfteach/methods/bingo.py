"""Bingo (Liu et al. 2025, arXiv 2506.08125): a length reward that tells significant tokens from others, and changes.

PPO. Right answers are paid for few insignificant tokens, against those of the frozen reference's answers to the same
prompt. Wrong answers lose less the more significant tokens they have, until training accuracy stops to rise.

    right  R = 1 + bonus cos(clip(q_low, 0, pi/2))
    wrong  R = min(0, redundancy (cos(clip(q_low, 0, pi/2)) - 1) + k q_high - explore)
    q      = tokens of the answer / tokens of the reference's answer, of the insignificant (low) or significant (high)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import (
    BadValue,
    Block,
    Claim,
    Method,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..reward.answer import exact_match
from ..reward.answer_verdicts import judge_groups
from ..reward.length import repeated_tokens, sampled_ids
from ..rollout.beside_reference import REFERENCE, beside_reference
from ..rollout.single import single
from .ppo import ppo


@method(family="efficiency", paper="2506.08125", catalogue=305)
def bingo(
    groups: int = 16,
    rollouts: int = 8,
    bonus: float = 5.0,
    redundancy: float = 2.0,
    explore: float = 5.0,
    significance: bool = True,
    dynamic: bool = True,
    references: int = 4,
    ngram: int = 6,
    delay_steps: int = 15,
    slope_steps: int = 10,
    plateau: float = 2.5,
    critic_lr: float = 1e-3,
    minibatches: int = 1,
    critic_epochs: int = 4,
    beta: float = 0.0,
) -> Method:
    """PPO with a reward for few insignificant tokens, and for significant ones of wrong answers while accuracy rises.

        right  R = 1 + bonus cos(clip(q_low, 0, pi/2))
        wrong  R = min(0, redundancy (cos(clip(q_low, 0, pi/2)) - 1) + k q_high - explore)
        k      = explore / (pi/2) until `delay_steps`; then the slope of training accuracy over `slope_steps` steps, in
                 units in which the first slope is that; from a slope of at most `plateau` on, -0.5 for each such step

    Liu et al. 2025 and the released code, whose are the coefficients 5, 2 and 5, the window, the plateau and the bound
    k >= -2 explore / (pi/2); there k changes from step 50 on. bonus = redundancy = explore = 0 is PPO.
    significance=False counts all tokens as both, a total-length reward; dynamic=False keeps k. Chosen here: LLMLingua-2
    decides there which tokens are significant; without one, a token inside an n-gram (`ngram`) that the answer already
    had is not (`significant_length` takes another scorer). The counts of the reference are means over `references` of
    its answers (one there), and at least 1. The paper's KL coefficient is 0.001 (`beta`), the critic's rate 1e-5.
    """
    reward = significant_length(
        judge=exact_match(),
        bonus=bonus,
        redundancy=redundancy,
        explore=explore,
        significance=significance,
        dynamic=dynamic,
        ngram=ngram,
        delay_steps=delay_steps,
        slope_steps=slope_steps,
        plateau=plateau,
    )
    base = ppo(
        groups=groups,
        rollouts=rollouts,
        critic_lr=critic_lr,
        minibatches=minibatches,
        critic_epochs=critic_epochs,
        beta=beta,
    )
    return base.replace(
        programs={"main": beside_reference(answers=references, shared=True)}, reward=(reward,)
    ).override(decode={"main": single()})


@block
@stateful(lambda: {"steps": 0, "accuracies": [], "first_slope": None, "flat": 0, "k": None})
async def significant_length(
    *,
    groups: Sequence[RolloutGroup],
    context: RewardContext,
    deadline: float,
    state: dict[str, Any],
    judge: Block | None = None,
    scorer: Block | None = None,
    bonus: float = 5.0,
    redundancy: float = 2.0,
    explore: float = 5.0,
    significance: bool = True,
    dynamic: bool = True,
    ngram: int = 6,
    delay_steps: int = 15,
    slope_steps: int = 10,
    plateau: float = 2.5,
) -> tuple[Scores, dict[str, Any]]:
    """The reward of right and wrong answers by their significant and insignificant tokens (of `bingo`).

    judge   a reward of answers, right from 1 on; None: exact_match
    scorer  a block of `pieces`, the bytes of each token, that gives each a number; normalised to [0, 1] over the
            answer, a token below 1/2 is insignificant. None: a token inside an n-gram that came before is

    Needs trajectories of the role `reference` in every group (`beside_reference`). Parts: those of the judge, explore
    (k), and of right answers insignificant_right and significant_right, in tokens. Unknown stays unknown.
    """
    if ngram < 1:
        raise BadValue(f"significant_length: ngram must be at least 1, not {ngram}")
    verdicts = await judge_groups(judge, groups, context, deadline)
    k = explore / (math.pi / 2) if state["k"] is None else float(state["k"])

    def counts(ids: np.ndarray) -> tuple[float, float]:
        if not significance:
            return float(len(ids)), float(len(ids))
        low = int(insignificant(ids, context, scorer, ngram).sum())
        return float(low), float(len(ids) - low)

    out: Scores = {"reward": {}}
    for group in groups:
        every = [(e, t) for e in group.episodes for t in e.trajectories]
        answers = [counts(sampled_ids(e, t)) for e, t in every if t.role == REFERENCE]
        if not answers:
            raise BadValue("significant_length: the group has no answers of the reference; play beside_reference()")
        base = np.maximum(np.mean(answers, axis=0), 1.0)
        for episode, t in every:
            if t.leaf not in verdicts:
                continue
            verdict, own = verdicts[t.leaf], counts(sampled_ids(episode, t))
            right, value = (verdict.value or 0.0) >= 1.0, None
            if verdict.value is not None:
                value = significance_reward(right, own[0] / base[0], own[1] / base[1], k, bonus, redundancy, explore)
            parts = {"explore": k}
            if right:
                parts |= {"insignificant_right": own[0], "significant_right": own[1]}
            out["reward"][t.leaf] = Score(value, {**verdict.parts, **parts}, verdict.why, verdict.error)
    known = [s.value >= 1.0 for s in verdicts.values() if s.value is not None]
    accuracies = [*state["accuracies"], float(np.mean(known))] if known else state["accuracies"]
    after: dict[str, Any] = {**state, "steps": state["steps"] + 1, "accuracies": accuracies[-slope_steps - 1 :]}
    if dynamic and after["steps"] >= delay_steps:
        after = after_slope(after, slope_steps, explore, plateau)
    return out, after


def significance_reward(
    right: bool, q_low: float, q_high: float, k: float, bonus: float, redundancy: float, explore: float
) -> float:
    """The reward of one answer by its shares of the reference's tokens.

    >>> how = dict(k=3.0, bonus=5.0, redundancy=2.0, explore=5.0)
    >>> significance_reward(True, 0.0, 1.0, **how), significance_reward(False, 0.0, 1.0, **how)
    (6.0, -2.0)
    """
    few = math.cos(min(max(q_low, 0.0), math.pi / 2))
    return 1.0 + bonus * few if right else min(0.0, redundancy * (few - 1.0) + k * q_high - explore)


def insignificant(ids: np.ndarray, context: RewardContext, scorer: Block | None, ngram: int) -> np.ndarray:
    """bool[N]: the tokens of an answer that say nothing new, or by the scorer's numbers are below the middle."""
    if scorer is None:
        return repeated_tokens(ids, ngram)
    found = np.asarray(scorer(pieces=context.tokenizer.token_bytes(ids)), np.float64)
    if not len(found) or found.min() == found.max():
        return np.zeros(len(ids), bool)
    return (found - found.min()) / (found.max() - found.min()) < 0.5


def after_slope(state: dict[str, Any], slope_steps: int, explore: float, plateau: float) -> dict[str, Any]:
    """The state with the next k, by the slope of the accuracies so far.

    s = slope (explore / (pi/2)) / |first slope|;   s > plateau: k = s;   else k = max(-2 explore / (pi/2), -0.5 flat)
    """
    values, unit = state["accuracies"], explore / (math.pi / 2)
    back = min(slope_steps, len(values) - 1)
    if back < 2:
        return state
    slope = float(np.polyfit(np.arange(back), values[-back:], 1)[0])
    first = slope if state["first_slope"] is None else state["first_slope"]
    scaled = slope * unit / (max(1e-6, abs(first)) if first else 1.0)
    if scaled > plateau:
        return {**state, "first_slope": first, "flat": 0, "k": scaled}
    flat = state["flat"] + 1
    return {**state, "first_slope": first, "flat": flat, "k": max(-2 * unit, -0.5 * flat)}


PPO: dict[str, Any] = {"bonus": 0.0, "redundancy": 0.0, "explore": 0.0}

bingo.claim = Claim(
    (
        # PPO's right answers repeat themselves, so that there is something to leave out
        premise("late:reward/insignificant_right", "ppo", 2.0, by=0.0, fails_at=1.0),
        # what is insignificant goes, and what is significant stays
        mechanism("late:reward/insignificant_right", "self", "ppo", by=0.3, relation="<", scale="ratio", fails_at=0.0),
        mechanism("late:reward/significant_right", "self", "ppo", by=0.15, relation="~", scale="ratio", fails_at=0.0),
        outcome("length", "self", "ppo", by=0.1, relation="<", scale="ratio", fails_at=30.0),
        outcome("accuracy", "self", "ppo", by=0.03, relation=">=", fails_at=1.0),
        outcome("accuracy", "self", "total", by=0.02, fails_at=0.99),
        outcome("length", "self", "fixed", by=0.05, relation="<", scale="ratio", fails_at=28.0),
    ),
    arms={
        "ppo": ("bingo", PPO),
        "total": ("bingo", {"significance": False}),
        "fixed": ("bingo", {"dynamic": False}),
    },
    regime="verbose",
    idea=("main.reward",),
    because="only what an answer says again is penalised, so that it gets shorter without losing what it needs, and "
    "wrong answers are long enough to be mended until accuracy rises no more",
)
