"""Asking the judge of an answer about other places than a trajectory's end: attempts in one context, continuations from a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..core import Episode, Group, Part, Ref, Score, Trajectory
from ..core.scoring import score


async def verdicts(judge: Part, group: Group, said: Sequence[tuple[Ref, Any]], cast: Any, deadline: float) -> dict[Ref, Score]:
    """What a judge of answers says of each answer, by the place where it was given; the tasks are the group's."""
    trees = {e.id: e.tree for e in group.episodes}
    asked = [Episode(at.episode, trees[at.episode], [Trajectory(at, "policy", group.key)], answer) for at, answer in said]
    return (await score(judge, [replace_episodes(group, asked)], cast, deadline)).get("reward", {})


def replace_episodes(group: Group, episodes: list[Episode]) -> Group:
    """The group with other episodes, unscored."""
    return group._replace(request=replace(group.request, n=len(episodes)), episodes=episodes, scores={})
