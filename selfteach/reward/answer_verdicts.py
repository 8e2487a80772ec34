"""Scores of answers at other places than a trajectory's end: attempts in one context, continuations from a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..core import Block, Episode, Ref, RewardContext, RolloutGroup, Score, Trajectory
from ..core.scoring import score


async def judge_answers(
    judge: Block, group: RolloutGroup, answers: Sequence[tuple[Ref, Any]], context: RewardContext, deadline: float
) -> dict[Ref, Score]:
    """The score that a judge (a reward of answers) gives each (place, answer) of a group, by place."""
    trees = {e.id: e.tree for e in group.episodes}
    episodes = [
        Episode(at.episode, trees[at.episode], [Trajectory(at, "policy", group.key)], answer) for at, answer in answers
    ]
    return (await score(judge, [replace_episodes(group, episodes)], context, deadline)).get("reward", {})


def replace_episodes(group: RolloutGroup, episodes: list[Episode]) -> RolloutGroup:
    """The group with other episodes, unscored."""
    return group._replace(request=replace(group.request, n=len(episodes)), episodes=episodes, scores={})
