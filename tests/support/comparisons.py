"""A game of three words whose preferences are intransitive, and a schedule of comparisons run with a judge."""

from __future__ import annotations

import asyncio
from typing import Any

from selfteach.core import Score, block
from selfteach.core.scoring import score
from selfteach.reward.pairwise import Schedule, run_schedule
from support.episodes import single_turn_group


def settle(rounds: Schedule, share: Any) -> tuple[Any, list[tuple[int, int]]]:
    async def ask(i: int, j: int) -> float:
        return share(i, j)

    return asyncio.run(run_schedule(rounds, ask))


def by_strength(strength: list[float]) -> Any:
    return lambda i, j: float(strength[i] > strength[j])


CIRCLE = ("rock", "paper", "scissors")


@block
def circle(*, first: Any, second: Any) -> float:
    """Paper over rock, scissors over paper, rock over scissors; equals share."""
    return (0.5, 1.0, 0.0)[(CIRCLE.index(first) - CIRCLE.index(second)) % 3]


def choices(*names: str) -> Any:
    """A group whose answers are these words."""
    group = single_turn_group(tuple((n,) for n in range(len(names))), [None] * len(names))
    for episode, name in zip(group.episodes, names, strict=True):
        episode.answer = name
    return group


def rewards_of(part: Any, group: Any) -> list[Score]:
    found = asyncio.run(score(part, [group], None))["reward"]  # type: ignore[arg-type]
    return [found[e.trajectories[0].leaf] for e in group.episodes]
