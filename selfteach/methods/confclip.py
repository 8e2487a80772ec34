"""ConfClip (Zhang et al. 2025, arXiv 2509.17730): the outcome times the policy's clipped confidence in its answer.

A right answer earns more the more confident it is, a wrong one loses more. The clip bounds how little of the outcome is
left (with high below 1 also how much), and groups that are all right, or all wrong, still have rewards to compare.

    R = v clip(c, low, high),   v = 1 right, -1 wrong,   c = exp(1/n sum_t log pi(a_t | q, a_<t))
"""

from __future__ import annotations

import math

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
)
from ..core.contexts import own_tokens
from ..reward.answer import exact_match
from ..reward.answer_verdicts import judge_groups
from .grpo import grpo


@method(family="reward", paper="2509.17730", catalogue=318)
def confclip(
    groups: int = 16,
    rollouts: int = 8,
    low: float = 0.5,
    high: float = 1.0,
    confidence: bool = True,
    beta: float = 0.0,
) -> Method:
    """GRPO on the outcome, 1 or -1, times the policy's confidence in its answer, clipped to [low, high].

        R = v clip(c, low, high),   c = exp(1/n sum_t log pi(a_t | q, a_<t))

    Zhang et al. 2025, of which only the abstract and summaries could be read: that outcome and confidence are
    multiplied and that a clip bounds the confidence is theirs. Chosen here: c is the geometric mean of the sampled
    tokens' probabilities at the temperature of sampling, known from it, so that nothing more is computed; and the
    bounds: half of the outcome is always left, and right answers, which a policy soon gives with a confidence above
    0.95, still differ. As c is at most 1, high=1 never acts. low=0 clips nothing; confidence=False is GRPO on v.
    """
    reward = confidence_weighted(judge=exact_match(), low=low, high=high, confidence=confidence)
    return grpo(groups=groups, rollouts=rollouts, beta=beta).replace(reward=(reward,))


@block
async def confidence_weighted(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    judge: Block | None = None,
    low: float = 0.5,
    high: float = 1.0,
    confidence: bool = True,
) -> Scores:
    """1 for a right answer and -1 for a wrong one, times the policy's clipped confidence in it.

    judge: right from 1 on; None: exact_match. Confidence is the geometric mean of the probabilities at which the
    answer's own tokens were sampled. Parts: those of the judge; confidence; confidence_right and confidence_wrong, the
    same of right and of wrong answers. Unknown where the reward or a log-probability is.
    """
    if not 0 <= low <= high:
        raise BadValue(f"confidence_weighted: low must be from 0 to high, not {low} and {high}")
    verdicts = await judge_groups(judge, [group], context, deadline)
    out: Scores = {"reward": dict(verdicts)}
    for at, verdict in verdicts.items():
        if verdict.value is None:
            continue
        path, right = context.path(at), verdict.value >= 1.0
        logp = np.asarray(path.logp, np.float64)[own_tokens(path)]
        c = math.exp(float(logp.mean())) if len(logp) else math.nan
        weight = min(max(c, low), high) if confidence else 1.0
        value = (1.0 if right else -1.0) * weight
        parts = {"confidence": c, "confidence_right" if right else "confidence_wrong": c}
        known = {} if math.isnan(c) else parts
        out["reward"][at] = Score(
            None if math.isnan(value) else value, {**verdict.parts, **known}, verdict.why, verdict.error
        )
    return out


confclip.claim = Claim(
    (
        # in the end most groups are all right, and have no gradient
        premise("late:rollout/mixed_group_fraction", "plain", 0.7, relation="<", fails_at=0.8),
        # answers of one outcome that are not the same text differ in confidence
        mechanism("late:rollout/mixed_group_fraction", "self", "plain", by=0.1, fails_at=1.0),
        outcome("auc", "self", "plain", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "plain", by=0.01, fails_at=1.0),
        outcome("length", "self", "plain", by=0.1, relation="<", scale="ratio", fails_at=30.0),
        outcome("accuracy", "self", "unclipped", by=0.01, fails_at=1.0),
    ),
    arms={
        "plain": ("confclip", {"confidence": False}),
        "unclipped": ("confclip", {"low": 0.0}),
    },
    regime="mended",  # a right answer is brief, or longer for the errors that it mends, of which it was less sure
    first_seed=300,
    corrected="on seeds 200 to 207, in verbose, the longer of two right ways was the surer one: does not hold here",
    idea=("main.reward",),
    because="a reward that says how sure the policy was tells answers of one outcome apart, so that no group is "
    "without a gradient, and what is brief is surer",
)
