"""Rewards that come of comparing the answers of a group with each other by a judge of pairs.

A judge is a block that names what it likes of `first` and `second` (answers), `task`, and `address` (of its draws, if it makes any); it
gives the share of the win that goes to the first: True, False, or a number from 0 to 1. It may be an async function.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ..core import BadValue, Group, Part, Score, Scores, block
from . import arena


@block
async def win_rate(*, group: Group, judge: Part | None = None) -> Scores:
    """The share of its siblings that an answer is preferred to: r_i = 1/(n - 1) sum_{j != i} P(i over j) (SPO, 2401.04056, algorithm 1).

    Each pair is judged once, n (n - 1) / 2 comparisons a group; what a judge leaves to the other side is the other's.
    Parts: comparisons, in which the answer stood. Raises BadValue for a group of one.
    """
    return await _compared(group, judge, arena.win_rates, lambda rates: rates)


@block
async def tournament(*, group: Group, judge: Part | None = None, topology: Literal["elimination", "round_robin", "swiss"] = "elimination") -> Scores:
    """The place of an answer in a tournament of its group: 1 for the champion, 0 for the last, 1 - k / (n - 1) for place k (ArenaRL, 2601.06487).

        elimination  seeds by meetings with the first answer, then a bracket: 2 (n - 1) comparisons
        round_robin  n (n - 1) / 2          swiss  ceil(log2 n) floor(n / 2)

    Parts: comparisons, in which the answer stood. Raises BadValue for a group of one.
    """
    schedules = {"elimination": arena.elimination, "round_robin": arena.round_robin, "swiss": arena.swiss}
    if topology not in schedules:
        raise BadValue(f"tournament: topology must be one of {', '.join(schedules)}, not {topology!r}")
    return await _compared(group, judge, schedules[topology], arena.worth_of_ranks)


async def _compared(group: Group, judge: Part | None, schedule: Callable[[int], arena.Rounds], worth: Callable[[Any], Sequence[float]]) -> Scores:
    if judge is None:
        raise BadValue("comparing needs a judge of pairs, as in win_rate(judge=preferred())")
    players = [e for e in group.episodes if e.status != "error"]
    if len(players) < 2:
        raise BadValue("an answer alone has nobody to be compared with; ask for at least 2 rollouts")
    met = Counter[tuple[int, int]]()

    async def ask(i: int, j: int) -> float:
        met[i, j] += 1  # who is asked twice about two answers may say different things
        a, b = players[i], players[j]
        given = {"first": a.answer, "second": b.answer, "task": group.request.task, "address": (group.request.task.id, a.id, b.id, met[i, j])}
        share: Any = judge(**{n: given[n] for n in judge.needs})
        return float(await share if inspect.isawaitable(share) else share)

    made, asked = await arena.held(schedule(len(players)), ask)
    stood = Counter(i for pair in asked for i in pair)
    scores = [Score(w, {"comparisons": float(stood[i])}) for i, w in enumerate(worth(made))]
    return {"reward": {t.leaf: s for e, s in zip(players, scores, strict=True) for t in e.trajectories if t.learn is not None}}
