"""Who meets whom, and how they end up: schedules of pairwise comparisons between the n members of a group.

A schedule is a generator: it yields rounds of pairs (i, j), is sent for each the share of the win that goes to i (1, 0, or between), and
returns what it made of them. It neither asks a judge nor draws lots, so that whoever runs it may ask a round's pairs at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

Rounds = Generator[list[tuple[int, int]], Sequence[float], Any]


def win_rates(n: int) -> Rounds:
    """Everybody meets everybody once: n (n - 1) / 2 pairs. Returns f[n]: the mean share of each over its n - 1 meetings.

    Each stands first in about half of its meetings, so that a judge that favours the first favours nobody.
    """
    pairs = [(i, j) if (i + j) % 2 else (j, i) for i in range(n) for j in range(i + 1, n)]
    won = [0.0] * n
    for (i, j), share in zip(pairs, (yield pairs), strict=True):
        won[i] += share
        won[j] += 1 - share
    return [w / (n - 1) for w in won]


def elimination(n: int) -> Rounds:
    """Seeded single elimination (ArenaRL, 2601.06487): 2 (n - 1) pairs. Returns the members, best first.

    Seeding: everybody meets member 0, the anchor, whose seeding score is its mean share. Then `bracket`, in which a share of at least a
    half lets the first of a pair go on. Those who fall in one round are ranked by their mean share over all their meetings; ties keep
    the order of seeds.
    """
    points: list[list[float]] = [[] for _ in range(n)]
    against = yield [(i, 0) for i in range(1, n)]
    for i, share in enumerate(against, start=1):
        points[i].append(share)
    points[0].append(statistics.fmean(1 - s for s in against))
    seeds = _ranked(range(n), points)
    standing: list[int | None] = [seeds[s] if s < n else None for s in bracket(n)]
    fallen: list[list[int]] = []
    while len(standing) > 1:
        met = list(zip(standing[::2], standing[1::2], strict=True))
        pairs = [(a, b) for a, b in met if a is not None and b is not None]
        shares = dict(zip(pairs, (yield pairs), strict=True))
        for (a, b), share in shares.items():
            points[a].append(share)
            points[b].append(1 - share)
        gone = {b if share >= 0.5 else a for (a, b), share in shares.items()}
        standing = [a if b is None or b in gone else b for a, b in met]
        fallen.append([s for s in seeds if s in gone])
    return [int(s) for s in standing if s is not None] + [i for losers in reversed(fallen) for i in _ranked(losers, points)]


def round_robin(n: int) -> Rounds:
    """Everybody meets everybody, ranked by `win_rates`. Returns the members, best first."""
    rates = yield from win_rates(n)
    return _ranked(range(n), [[r] for r in rates])


def swiss(n: int) -> Rounds:
    """ceil(log2 n) rounds in which neighbours of the table meet, who have not met before where that can be had. Returns the members, best first.

    Of an odd number the lowest that has not rested yet rests, and has won that round. floor(n / 2) pairs a round.
    """
    points: list[list[float]] = [[] for _ in range(n)]
    met, rested = set[frozenset[int]](), set[int]()
    for _ in range(max(n - 1, 0).bit_length()):
        table = sorted(range(n), key=lambda i: -sum(points[i]))
        if n % 2:
            rest = next(i for i in reversed(table) if i not in rested)
            table.remove(rest)
            rested.add(rest)
            points[rest].append(1.0)
        pairs: list[tuple[int, int]] = []
        while table:
            a = table.pop(0)
            b = next((i for i in table if frozenset((a, i)) not in met), table[0])
            table.remove(b)
            pairs.append((a, b))
        met.update(frozenset(p) for p in pairs)
        for (a, b), share in zip(pairs, (yield pairs), strict=True):
            points[a].append(share)
            points[b].append(1 - share)
    return _ranked(range(n), points)


def bracket(n: int) -> list[int]:
    """The places of a standard bracket: seed numbers from 0, in pairs that meet first; numbers from n on are byes.

    The best two can meet in the final only, the best four not before the semi-finals; byes fall to the best.

    >>> bracket(4), bracket(6)
    ([0, 3, 1, 2], [0, 7, 3, 4, 1, 6, 2, 5])
    """
    places = [0]
    while len(places) < n:
        places = [s for i in places for s in (i, 2 * len(places) - 1 - i)]
    return places


def worth_of_ranks(order: Sequence[int]) -> list[float]:
    """Rewards of n members from their order, best first: 1 - k / (n - 1) for place k, counted from 0.

    >>> worth_of_ranks([2, 0, 1])
    [0.5, 0.0, 1.0]
    """
    out = [0.0] * len(order)
    for place, i in enumerate(order):
        out[i] = 1 - place / (len(order) - 1)
    return out


async def held(rounds: Rounds, ask: Callable[[int, int], Awaitable[float]]) -> tuple[Any, list[tuple[int, int]]]:
    """Run a schedule with a judge. Returns what it made of the answers, and the pairs that were asked, in order."""
    asked: list[tuple[int, int]] = []
    try:
        pairs = next(rounds)
        while True:
            asked += pairs
            pairs = rounds.send([await ask(i, j) for i, j in pairs])
    except StopIteration as end:
        return end.value, asked


def _ranked(members: Sequence[int], points: Sequence[Sequence[float]]) -> list[int]:
    """The members by their mean points, best first; equals in the order they came."""
    return sorted(members, key=lambda i: -statistics.fmean(points[i]))
