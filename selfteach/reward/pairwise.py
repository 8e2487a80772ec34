"""Rewards from pairwise comparisons: a schedule says which answers of a group are compared, a judge which one wins.

A judge is a block that names what it needs of `first` and `second` (answers), `task`, and `rng_key` (the RNG key of its
draws); it returns the share of the win that goes to the first: True, False, or a number from 0 to 1. It may be async.

A schedule for n answers is a generator: it yields rounds of pairs (i, j), is sent the share of i for each pair, and
returns its result. It neither calls a judge nor draws at random.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from ..core import BadValue, Block, RolloutGroup, Score, Scores

Schedule = Generator[list[tuple[int, int]], Sequence[float], Any]


async def compare(
    group: RolloutGroup,
    judge: Block | str,
    schedule: Callable[[int], Schedule],
    values: Callable[[Any], Sequence[float]],
) -> Scores:
    """Rewards of a group's answers: `values` of what the schedule returns.

    judge: a judge of pairs, or the name of one that the task has (`Task.judges`). Failed episodes are left out.
    Parts: comparisons, the number that the answer was in. Raises BadValue for fewer than two answers.
    """
    task = group.request.task
    judge_block = task.judge(judge) if isinstance(judge, str) else judge
    players = [e for e in group.episodes if e.status != "error"]
    if len(players) < 2:
        raise BadValue(
            "a pairwise reward needs two answers of a group, and there are fewer; set rollouts to at least 2"
        )
    met = Counter[tuple[int, int]]()

    async def ask(i: int, j: int) -> float:
        met[i, j] += 1  # a noisy judge may answer differently the second time
        a, b = players[i], players[j]
        given = {"first": a.answer, "second": b.answer, "task": task, "rng_key": (task.id, a.id, b.id, met[i, j])}
        share: Any = judge_block(**{n: given[n] for n in judge_block.needs})
        return float(await share if inspect.isawaitable(share) else share)

    result, asked = await run_schedule(schedule(len(players)), ask)
    counts = Counter(i for pair in asked for i in pair)
    scores = [Score(v, {"comparisons": float(counts[i])}) for i, v in enumerate(values(result))]
    return {
        "reward": {
            t.leaf: s for e, s in zip(players, scores, strict=True) for t in e.trajectories if t.learn is not None
        }
    }


async def run_schedule(
    schedule: Schedule, ask: Callable[[int, int], Awaitable[float]]
) -> tuple[Any, list[tuple[int, int]]]:
    """Run a schedule with a judge. Returns the schedule's result and the compared pairs, in order."""
    asked: list[tuple[int, int]] = []
    try:
        pairs = next(schedule)
        while True:
            asked += pairs
            pairs = schedule.send([await ask(i, j) for i, j in pairs])
    except StopIteration as end:
        return end.value, asked


def win_rates(n: int) -> Schedule:
    """All pairs once: n (n - 1) / 2. Returns f[n]: the mean share of each answer over its n - 1 comparisons.

    Each is first in about half of its comparisons, so that a judge that favours the first favours no answer.
    """
    pairs = [(i, j) if (i + j) % 2 else (j, i) for i in range(n) for j in range(i + 1, n)]
    won = [0.0] * n
    for (i, j), share in zip(pairs, (yield pairs), strict=True):
        won[i] += share
        won[j] += 1 - share
    return [w / (n - 1) for w in won]
