"""Scores of answers at other places than a trajectory's end: attempts in one context, continuations from a step.

And how well numbers tell right answers from wrong ones, by such scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..core import Block, Episode, Ref, RewardContext, RolloutGroup, Score, Trajectory
from ..core.ranking import auc
from ..core.scoring import score
from .answer import exact_match


async def judge_groups(
    judge: Block | None, groups: Sequence[RolloutGroup], context: RewardContext, deadline: float
) -> dict[Ref, Score]:
    """The score that a judge (None: exact_match) gives each trajectory of some groups, by place."""
    return dict((await score(judge or exact_match(), groups, context, deadline)).get("reward", {}))


async def judge_answers(
    judge: Block | None,
    group: RolloutGroup,
    answers: Sequence[tuple[Ref, Any]],
    context: RewardContext,
    deadline: float,
) -> dict[Ref, Score]:
    """The score that a judge (of answers; None: exact_match) gives each (place, answer) of a group, by place."""
    trees = {e.id: e.tree for e in group.episodes}
    episodes = [
        Episode(at.episode, trees[at.episode], [Trajectory(at, "policy", group.key)], answer) for at, answer in answers
    ]
    return await judge_groups(judge, [replace_episodes(group, episodes)], context, deadline)


def replace_episodes(group: RolloutGroup, episodes: list[Episode]) -> RolloutGroup:
    """The group with other episodes, unscored."""
    return group._replace(request=replace(group.request, n=len(episodes)), episodes=episodes, scores={})


def verdict_auc(values: Sequence[float], verdicts: Sequence[float | None]) -> float | None:
    """The chance that a right answer, one with a verdict of at least 1, has a larger value than a wrong one.

    Equals count one half, answers without a verdict not at all. None without one of each.

    >>> verdict_auc([0.9, 0.2, 0.4, 0.4, 0.1], [1.0, 0.0, 1.0, 0.0, None])
    0.875
    """
    known = [(v, r >= 1.0) for v, r in zip(values, verdicts, strict=True) if r is not None]
    return auc([v for v, right in known if right], [v for v, right in known if not right])
