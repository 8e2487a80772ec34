"""SPO, self-play preference optimisation (Swamy et al. 2024, arXiv 2401.04056), and GRPO on single-text judges.

The reward of an answer is its win rate among the answers to the same prompt, by a pairwise judge.

    r_i = 1/(n - 1) sum_{j != i} P(y_i preferred to y_j)
"""

from __future__ import annotations

from typing import Literal

from ..core import Block, Claim, Method, RewardContext, RolloutGroup, Scores, block, method, unsorted
from ..core.scoring import score
from ..reward.pairwise import compare, win_rates
from .grpo import grpo


@method(family="preference", paper="2401.04056", catalogue=62)
def spo(groups: int = 16, rollouts: int = 8) -> Method:
    """Self-play preference optimisation: GRPO on the win rate of an answer within its group.

        r_i = 1/(n - 1) sum_{j != i} P(y_i preferred to y_j)

    Swamy et al. 2024, algorithm 1, with the answers of a group for its queue of trajectories; any policy gradient may
    follow, here GRPO's. Self-play against one's own samples converges to the minimax winner, also for intransitive
    preferences. The judge is the task's pairwise judge (`pair`: Bradley-Terry on the hidden true reward).
    """
    return grpo(groups=groups, rollouts=rollouts).replace(reward=(win_rate(),))


@method(family="preference", paper="2401.04056")
def pointwise(groups: int = 16, rollouts: int = 8, judge: Literal["proxy", "coarse"] = "proxy") -> Method:
    """The baseline of pairwise comparisons: GRPO on the task's pointwise judge.

    judge: `proxy` (a reward that can be over-optimised) or `coarse` (the true reward, noisy and rounded to few values).
    """
    return grpo(groups=groups, rollouts=rollouts).replace(reward=(task_judge(name=judge),))


@block
async def win_rate(*, group: RolloutGroup, judge: Block | str = "pair") -> Scores:
    """The win rate of an answer against the others of its group (algorithm 1).

        r_i = 1/(n - 1) sum_{j != i} P(y_i preferred to y_j)

    Each pair is judged once, n (n - 1) / 2 comparisons a group, and P(j over i) = 1 - P(i over j). judge: see
    `reward.pairwise.compare`. Parts: comparisons. Raises BadValue for a group of one.
    """
    return await compare(group, judge, win_rates, lambda rates: rates)


@block
async def task_judge(*, group: RolloutGroup, context: RewardContext, deadline: float, name: str = "proxy") -> Scores:
    """The reward by the task's pointwise judge of that name (`Task.judges`)."""
    return await score(group.request.task.judge(name), [group], context, deadline)


spo.claim = Claim(
    (
        unsorted("score", "self", "start", by=0.05),
        unsorted("score", "self", "proxy", by=0.05),
        unsorted("score", "self", "oracle", by=-0.05),
    ),
    arms={"proxy": ("pointwise", {"judge": "proxy"}), "oracle": "grpo"},
    task="preference",
    steps=40,
    because=(
        "win rates come from the noisy pairwise judge itself: there is no reward model between them that could be "
        "over-optimised"
    ),
)

pointwise.claim = Claim(
    (unsorted("score", "self", "oracle", by=0.05, relation="<"),),
    arms={"oracle": "grpo"},
    task="preference",
    steps=40,
    because="a proxy reward departs from the true one once it is optimised",
)
