"""Rewards from comparisons: win rates, brackets worked by hand, and what self-play finds where preferences go in circles."""

from __future__ import annotations

import asyncio
import itertools
import math
from typing import Any

import numpy as np
import pytest
from conftest import said_group

from selfteach.core import Score, block
from selfteach.core.address import generator, uniform
from selfteach.core.scoring import score
from selfteach.core.task import Task
from selfteach.credit.baseline import center
from selfteach.reward import arena
from selfteach.reward.compared import tournament, win_rate
from selfteach.reward.written import coarse_worth, preferred, preferred_by, true_worth


def settle(rounds: arena.Rounds, share: Any) -> tuple[Any, list[tuple[int, int]]]:
    async def ask(i: int, j: int) -> float:
        return share(i, j)

    return asyncio.run(arena.held(rounds, ask))


def by_strength(strength: list[float]) -> Any:
    return lambda i, j: float(strength[i] > strength[j])


CIRCLE = ("rock", "paper", "scissors")


@block
def circle(*, first: Any, second: Any) -> float:
    """Paper over rock, scissors over paper, rock over scissors; equals share."""
    return (0.5, 1.0, 0.0)[(CIRCLE.index(first) - CIRCLE.index(second)) % 3]


def choices(*names: str) -> Any:
    """A group whose answers are these words."""
    group = said_group(tuple((n,) for n in range(len(names))), [None] * len(names))
    for episode, name in zip(group.episodes, names, strict=True):
        episode.answer = name
    return group


def rewards_of(part: Any, group: Any) -> list[Score]:
    found = asyncio.run(score(part, [group], None))["reward"]  # type: ignore[arg-type]
    return [found[e.trajectories[0].leaf] for e in group.episodes]


# ---- win rates


def test_a_win_rate_is_the_share_of_siblings_beaten():
    # rock: loses to paper, ties with rock: (0 + 1/2) / 2; paper beats both: 2 / 2
    got = rewards_of(win_rate(judge=circle()), choices("rock", "paper", "rock"))
    assert [s.value for s in got] == [0.25, 1.0, 0.25]
    assert [s.parts["comparisons"] for s in got] == [2, 2, 2]
    one_of_each = rewards_of(win_rate(judge=circle()), choices(*CIRCLE))
    assert [s.value for s in one_of_each] == [0.5, 0.5, 0.5]  # in a circle nobody stands out


@pytest.mark.parametrize("n", [2, 3, 8])
def test_every_pair_meets_once_and_everybody_stands_first_as_often_as_can_be(n):
    rates, asked = settle(arena.win_rates(n), lambda i, j: 1.0)
    assert sorted(map(sorted, asked)) == [[i, j] for i in range(n) for j in range(i + 1, n)]
    first = [sum(p[0] == i for p in asked) for i in range(n)]
    assert max(first) - min(first) <= 1 + n % 2
    assert math.isclose(sum(rates), n / 2)  # a win for one is a loss for the other


def test_nobody_to_compare_with_is_an_error_that_says_so():
    (alone,) = rewards_of(win_rate(judge=circle()), choices("rock"))
    assert alone.value is None and "at least 2 rollouts" in (alone.error or "")
    assert "needs a judge" in (rewards_of(win_rate(), choices("rock", "rock"))[0].error or "")
    failed = choices("rock", "paper", "rock")
    failed.episodes[2].status = "error"
    found = asyncio.run(score(win_rate(judge=circle()), [failed], None))["reward"]  # type: ignore[arg-type]
    assert sorted(s.value for s in found.values()) == [0.0, 1.0]


def exploited(p: np.ndarray) -> float:
    """How much above a half the best answer to a mixture wins in the circle."""
    beats = np.array([[circle(first=a, second=b) for b in CIRCLE] for a in CIRCLE])
    return float((beats @ p).max() - 0.5)


def test_self_play_finds_the_minimax_winner_where_a_reward_model_finds_a_pure_choice():
    """SPO's own example. The minimax winner of the circle is the uniform mixture, of exploitability 0; a pure choice's is 1/2."""
    logits, total, steps = np.log([0.6, 0.3, 0.1]), np.zeros(3), 400
    for step in range(steps):
        p = np.exp(logits) / np.exp(logits).sum()
        total += p
        drawn = np.searchsorted(p.cumsum(), uniform(step + 1, np.arange(24)) * (1 - 1e-12))
        group = choices(*(CIRCLE[min(int(i), 2)] for i in drawn))
        reward = [s.value for s in rewards_of(win_rate(judge=circle()), group)]
        adv = center(reward=reward, group=[0] * 24, by="leave_one_out")["adv"].values
        for i, a in zip(drawn, adv, strict=True):  # the policy gradient over p: multiplicative weights
            logits[min(int(i), 2)] += 0.1 * a / 24 / p[min(int(i), 2)]
    assert exploited(total / steps) < 0.06
    # Bradley and Terry's model on the same kind of data (pairs of the first mixture): its best choice is one, and loses to another
    draw, r = generator(0, "pairs"), np.zeros(3)
    pairs = [(a, b) for a, b in draw.choice(3, (600, 2), p=[0.6, 0.3, 0.1]) if a != b]
    for _ in range(300):
        slope = np.zeros(3)
        for a, b in pairs:
            chance = 1 / (1 + math.exp(r[b] - r[a]))
            won = circle(first=CIRCLE[a], second=CIRCLE[b])
            slope[a] += won - chance
            slope[b] -= won - chance
        r += 4 * slope / len(pairs)
    best = np.eye(3)[int(r.argmax())]
    assert np.sort(r)[-1] - np.sort(r)[-2] > 0.5 and exploited(best) == 0.5


# ---- tournaments


def test_a_bracket_worked_by_hand():
    """Five players of strengths 3 5 1 4 2, player 0 the anchor.

    Seeding against 0: 1 and 3 win (1), 2 and 4 lose (0); 0 has won two of four, 1/2. Seeds: 1, 3, 0, 2, 4.
    Bracket of eight: seeds 0-7, 3-4, 1-6, 2-5, so only seeds 3 and 4 (players 2 and 4) meet first: 4 goes on (2 over 1).
    Then player 1 over 4, and 3 over 0; then 1 over 3. Of the losers of the second round 0 stands at (1/2 + 0)/2 = 1/4 and
    4 at (0 + 1 + 0)/3 = 1/3, so 4 is third. Order: 1, 3, 4, 0, 2.
    """
    order, asked = settle(arena.elimination(5), by_strength([3, 5, 1, 4, 2]))
    assert asked == [(1, 0), (2, 0), (3, 0), (4, 0), (2, 4), (1, 4), (3, 0), (1, 3)]
    assert order == [1, 3, 4, 0, 2]
    assert arena.worth_of_ranks(order) == [0.25, 1.0, 0.0, 0.75, 0.5]


def test_ties_go_to_the_better_seed():
    # all equal: everybody's seeding score is 1/2, seeds in order; the first of each pair goes on
    order, asked = settle(arena.elimination(4), lambda i, j: 0.5)
    assert order == [0, 1, 2, 3] and asked[3:] == [(0, 3), (1, 2), (0, 1)]


@pytest.mark.parametrize("n", range(2, 18))
def test_the_numbers_of_comparisons_and_the_champion(n):
    strength = [float((7 * i) % n if math.gcd(7, n) == 1 else i) for i in range(n)]
    order, asked = settle(arena.elimination(n), by_strength(strength))
    assert len(asked) == 2 * (n - 1) and sorted(order) == list(range(n))
    assert order[0] == int(np.argmax(strength))
    order, asked = settle(arena.round_robin(n), by_strength(strength))
    assert len(asked) == n * (n - 1) // 2 and order == sorted(range(n), key=lambda i: -strength[i])
    order, asked = settle(arena.swiss(n), by_strength(strength))
    assert len(asked) == math.ceil(math.log2(n)) * (n // 2) and sorted(order) == list(range(n))
    assert order[0] == int(np.argmax(strength)) or n % 2  # who rests has not met the best


@pytest.mark.parametrize("n", [4, 8, 16])
def test_in_a_bracket_the_best_meet_late(n):
    places = arena.bracket(n)
    assert sorted(places) == list(range(n))
    for size in (2, 4):
        if size < n:
            parts = [set(places[k : k + n // size]) for k in range(0, n, n // size)]
            assert all(len(part & set(range(size))) == 1 for part in parts)


def kendall(order: list[int], strength: list[float]) -> float:
    place = {i: k for k, i in enumerate(order)}
    pairs = list(itertools.combinations(range(len(order)), 2))
    return sum(1 if (place[i] < place[j]) == (strength[i] > strength[j]) else -1 for i, j in pairs) / len(pairs)


def test_a_bracket_ranks_nearly_as_well_as_all_meetings_and_better_than_coarse_marks():
    """ArenaRL's simulation: 16 players, noisy shares; with 30 comparisons of 120. Pointwise: the same noise, rounded to four marks."""
    taus = {"elimination": [], "round_robin": [], "marks": []}
    for trial in range(60):
        draw = generator("arena", trial)
        strength = (0.75 + 0.2 * draw.random(16)).tolist()  # good answers, close together
        share = lambda i, j, d=draw, s=strength: 1 / (1 + math.exp(-((s[i] - s[j]) / 0.05 + d.logistic())))  # noqa: E731
        for name in ("elimination", "round_robin"):
            taus[name].append(kendall(settle(getattr(arena, name)(16), share)[0], strength))
        marks = [round(min(max(s + 0.05 * draw.gumbel(), 0), 1) * 3) for s in strength]
        taus["marks"].append(kendall(sorted(range(16), key=lambda i, m=marks: -m[i]), strength))
    mean = {k: float(np.mean(v)) for k, v in taus.items()}
    assert mean["elimination"] > mean["marks"] + 0.05 and mean["round_robin"] > mean["elimination"], mean


def test_the_reward_of_a_tournament():
    got = rewards_of(tournament(judge=circle()), choices("rock", "paper"))
    assert [s.value for s in got] == [0.0, 1.0] and [s.parts["comparisons"] for s in got] == [2, 2]
    bad = rewards_of(tournament(judge=circle(), topology="league"), choices("rock", "paper"))[0]
    assert bad.value is None and "topology must be one of" in (bad.error or "")


# ---- judges of texts

WISH = Task("w", "", None, tags={"subjects": ("sea",), "mood": "calm"})
GOOD, POOR = "the quiet sea sleeps and the soft moon waits.", "the loud bird sings."


def test_a_judge_who_says_by_how_much_agrees_with_the_one_who_says_which():
    shares = [preferred_by(first=GOOD, second=POOR, task=WISH, address=(i,), noise=0.5) for i in range(300)]
    says = [preferred(first=GOOD, second=POOR, task=WISH, address=(i,), noise=0.5) for i in range(300)]
    assert [s > 0.5 for s in shares] == says and 0.5 < np.mean(says) < 1
    assert preferred_by(first=GOOD, second=POOR, task=WISH, address=(0,), noise=0.0) == pytest.approx(1.0)
    assert preferred_by(first=GOOD, second=GOOD, task=WISH, address=(0,), noise=0.0) == 0.5


def test_a_coarse_mark_is_the_worth_rounded():
    class Path:
        ids = np.arange(3)

    worth = true_worth(answer=POOR, task=WISH).value  # 0.4: grammar and variety
    assert worth == pytest.approx(0.4)
    assert coarse_worth(answer=POOR, task=WISH, path=Path(), noise=0.0, levels=4).value == pytest.approx(1 / 3)
    marks = set()
    for i in range(100):
        Path.ids = np.arange(i)
        marks.add(coarse_worth(answer=POOR, task=WISH, path=Path(), noise=0.3, levels=4).value)
    assert marks <= {0.0, 1 / 3, 2 / 3, 1.0} and len(marks) > 2
