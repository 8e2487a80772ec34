"""ArenaRL by hand: brackets, numbers of comparisons, places as rewards."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from support.battery import of
from support.comparisons import by_strength, choices, circle, rewards_of, settle

from selfteach.core.random_keys import generator
from selfteach.methods.arena_rl import bracket, elimination, rank_rewards, round_robin, swiss, tournament
from selfteach.tasks.preference import preference
from selfteach.tasks.preference_rewards import proxy_worth


def test_a_bracket_worked_by_hand():
    """Five players of strengths 3 5 1 4 2, player 0 the anchor.

    Seeding against 0: 1 and 3 win (1), 2 and 4 lose (0); 0 has won two of four, 1/2. Seeds: 1, 3, 0, 2, 4. Bracket of
    eight: seeds 0-7, 3-4, 1-6, 2-5, so only seeds 3 and 4 (players 2 and 4) meet first: 4 goes on (2 over 1). Then
    player 1 over 4, and 3 over 0; then 1 over 3. Of the losers of the second round 0 stands at (1/2 + 0)/2 = 1/4 and 4
    at (0 + 1 + 0)/3 = 1/3, so 4 is third. Order: 1, 3, 4, 0, 2.
    """
    order, asked = settle(elimination(5), by_strength([3, 5, 1, 4, 2]))
    assert asked == [(1, 0), (2, 0), (3, 0), (4, 0), (2, 4), (1, 4), (3, 0), (1, 3)]
    assert order == [1, 3, 4, 0, 2]
    assert rank_rewards(order) == [0.25, 1.0, 0.0, 0.75, 0.5]


def test_ties_go_to_the_better_seed():
    # all equal: everybody's seeding score is 1/2, seeds in order; the first of each pair goes on
    order, asked = settle(elimination(4), lambda i, j: 0.5)
    assert order == [0, 1, 2, 3] and asked[3:] == [(0, 3), (1, 2), (0, 1)]


@pytest.mark.parametrize("n", range(2, 18))
def test_the_numbers_of_comparisons_and_the_champion(n):
    strength = [float((7 * i) % n if math.gcd(7, n) == 1 else i) for i in range(n)]
    order, asked = settle(elimination(n), by_strength(strength))
    assert len(asked) == 2 * (n - 1) and sorted(order) == list(range(n))
    assert order[0] == int(np.argmax(strength))
    order, asked = settle(round_robin(n), by_strength(strength))
    assert len(asked) == n * (n - 1) // 2 and order == sorted(range(n), key=lambda i: -strength[i])
    order, asked = settle(swiss(n), by_strength(strength))
    assert len(asked) == math.ceil(math.log2(n)) * (n // 2) and sorted(order) == list(range(n))
    assert order[0] == int(np.argmax(strength)) or n % 2  # who rests has not met the best


@pytest.mark.parametrize("n", [4, 8, 16])
def test_in_a_bracket_the_best_meet_late(n):
    places = bracket(n)
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
    """ArenaRL's simulation: 16 players, noisy shares; with 30 comparisons of 120.

    Pointwise: the same noise, rounded to four marks.
    """
    taus = {"elimination": [], "round_robin": [], "marks": []}
    for trial in range(60):
        draw = generator("arena", trial)
        strength = (0.75 + 0.2 * draw.random(16)).tolist()  # good answers, close together
        share = lambda i, j, d=draw, s=strength: 1 / (1 + math.exp(-((s[i] - s[j]) / 0.05 + d.logistic())))  # noqa: E731
        for name, schedule in (("elimination", elimination), ("round_robin", round_robin)):
            taus[name].append(kendall(settle(schedule(16), share)[0], strength))
        marks = [round(min(max(s + 0.05 * draw.gumbel(), 0), 1) * 3) for s in strength]
        taus["marks"].append(kendall(sorted(range(16), key=lambda i, m=marks: -m[i]), strength))
    mean = {k: float(np.mean(v)) for k, v in taus.items()}
    assert mean["elimination"] > mean["marks"] + 0.05 and mean["round_robin"] > mean["elimination"], mean


def test_the_reward_of_a_tournament():
    got = rewards_of(tournament(judge=circle()), choices("rock", "paper"))
    assert [s.value for s in got] == [0.0, 1.0] and [s.parts["comparisons"] for s in got] == [2, 2]
    bad = rewards_of(tournament(judge=circle(), topology="league"), choices("rock", "paper"))[0]
    assert bad.value is None and "topology must be one of" in (bad.error or "")


def test_clip_and_kl_are_those_of_the_released_code():
    (update,) = of("arena_rl").stage.updates
    assert [str(t.fn) for t in update.terms] == ["clipped_ratio(low=0.2, high=0.28)"]
    (update,) = of("arena_rl", beta=0.1).stage.updates
    assert [(t.fn.name, t.coef) for t in update.terms] == [("clipped_ratio", 1.0), ("kl", 0.1)]


def test_the_judge_of_single_answers_is_the_tasks_own():
    task = preference(judge=1e-3, n_test=5).train(0)
    group = choices(str(task.answer[0]), "the sea .", "the sea .")
    group = group._replace(request=replace(group.request, task=task))
    want = [proxy_worth(answer=e.answer, task=task).value for e in group.episodes]
    assert [s.value for s in rewards_of(of("pointwise").stage.reward[0], group)] == want and want[0] > want[1]


def test_a_missing_judge_is_named_in_the_error():
    scores = rewards_of(of("pointwise", judge="coarse").stage.reward[0], choices("rock", "paper"))
    assert all(s.value is None and "judge of task" in (s.error or "") for s in scores)
