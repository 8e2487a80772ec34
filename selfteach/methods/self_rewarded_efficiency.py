"""Self-Rewarded Efficiency RL (Zhao et al. 2025, arXiv 2506.15647): the policy's shortest right answer sets the length.

Right answers to one question differ much in length, and the shortest are as right as the longest. So of a group's right
answers the shortest has all of the reward and the others less, by how much longer they are, without a budget from
outside; the more of the group is right, the more length counts.

    R = 1 - alpha p (L - L_min) / (L_max - L_min) if right, else 0     L_min, L_max of the group's right answers,
                                                                       p the share of it that is right
"""

from __future__ import annotations

import numpy as np

from ..core import (
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
from ..reward.answer import exact_match
from ..reward.answer_verdicts import judge_groups
from ..reward.length import tokens_of
from .grpo import grpo


@method(family="efficiency", paper="2506.15647", catalogue=43)
def self_rewarded_efficiency(
    groups: int = 16, rollouts: int = 8, alpha: float = 0.5, dynamic: bool = True, beta: float = 0.0
) -> Method:
    """GRPO in which the shortest right answer of a group has all of the reward, and longer right ones less.

        R = 1 - alpha p (L - L_min) / (L_max - L_min)    right
          = 0                                            wrong

    Zhao et al. 2025, section 5, a reading: the abstract and reviews say that concise right answers are rewarded, that
    the group's own are the measure, and that accuracy and brevity are balanced dynamically; no code is released. Chosen
    here: that the excess is taken over the range of the right answers, that p is the group's accuracy (dynamic=False:
    1), and alpha, below 1 so that the longest right answer is worth more than a wrong one. alpha=0 is GRPO. Unlike the
    length reward of `kimi` it knows right answers alone: a wrong one neither gains by being short nor stretches the
    range. The paper's other part, Efficiency Steering, which needs no training, is `efficiency_steering`.
    """
    return grpo(groups=groups, rollouts=rollouts, beta=beta).replace(
        reward=(less_for_excess(judge=exact_match(), alpha=alpha, dynamic=dynamic),)
    )


@block
async def less_for_excess(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    judge: Block | None = None,
    alpha: float = 0.5,
    dynamic: bool = True,
) -> Scores:
    """The reward of `self_rewarded_efficiency`. judge: right from 1 on; None: exact_match.

    Parts: those of the judge; right; of right answers excess, how far they are from the shortest to the longest, and
    spread, the shortest's share of the longest. Unknown rewards stay unknown and count in no accuracy.
    """
    verdicts = await judge_groups(judge, [group], context, deadline)
    tokens = {t.leaf: tokens_of(e, t) for e in group.episodes for t in e.trajectories}
    known = {at: (v >= 1.0) for at, s in verdicts.items() if (v := s.value) is not None}
    right = [at for at, is_right in known.items() if is_right]
    lengths = [tokens[at] for at in right]
    excess = dict(zip(right, excesses(lengths), strict=True))
    weight = alpha * (len(right) / len(known) if dynamic and known else 1.0)
    out = dict(verdicts)
    for at, is_right in known.items():
        have = verdicts[at]
        parts = {**have.parts, "right": float(is_right)}
        if is_right:
            parts |= {"excess": excess[at], "spread": min(lengths) / max(lengths)}
        out[at] = Score(1.0 - weight * excess[at] if is_right else 0.0, parts, have.why, have.error)
    return {"reward": out}


def excesses(lengths: list[int]) -> list[float]:
    """How far each length is from the shortest (0) to the longest (1); 0 where all are the same.

    >>> excesses([10, 15, 30]), excesses([7, 7])
    ([0.0, 0.25, 1.0], [0.0, 0.0])
    """
    if not lengths or min(lengths) == max(lengths):
        return [0.0] * len(lengths)
    return np.interp(lengths, [min(lengths), max(lengths)], [0.0, 1.0]).tolist()


self_rewarded_efficiency.claim = Claim(
    (
        premise("length_right", "plain", 36.0, by=0.0, fails_at=32.0),  # thirty tokens write every addition once
        premise("early:reward/spread", "plain", 0.8, relation="<", fails_at=0.9),  # right answers differ in length
        # right answers come nearer to the shortest of their group
        mechanism("late:reward/excess", "self", "plain", by=0.2, relation="<", fails_at=0.1),
        outcome("length", "self", "plain", by=0.1, relation="<", scale="ratio", fails_at=30.0),
        outcome("accuracy", "self", "plain", by=0.03, relation=">=", fails_at=1.0),
        outcome("auc", "self", "fixed", by=0.03, relation=">=", fails_at=1.0),  # length waits for accuracy
    ),
    arms={
        "plain": ("self_rewarded_efficiency", {"alpha": 0.0}),
        "fixed": ("self_rewarded_efficiency", {"dynamic": False}),
    },
    regime="hesitant",
    settings={"steps": 120, "eval_every": 12},
    first_seed=400,
    corrected=(
        "on seeds 200 to 207, of 60 steps, the shortest's share of the longest stood for how near answers come to the "
        "shortest, and falls until the last long one is gone: mechanism not shown. On seeds 300 to 307, in overlong, "
        "right answers had two lengths, and nearly all were right from the first step: holds"
    ),
    idea=("main.reward",),
    because="the shortest of a policy's own right answers shows how short they can be, question by question",
)
