"""Knapsack RL: the value of rollouts by hand, shares against all others, and what a pool spends."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.curriculum import asked
from support.models import mini

from selfteach.core import History, registry
from selfteach.curriculum.select import pool
from selfteach.loop import assemble
from selfteach.methods.knapsack import allocate, budgeted_pool, chance_mixed, prompt_value
from selfteach.model.catalog import StartModel


def test_worth_by_hand():
    # p = 1/2, n = 2: 1 - 1/4 - 1/4 = 1/2, times 1/2 * 1/4
    assert (chance_mixed(2, 0.5), prompt_value(2, 0.5)) == (0.5, 0.0625)
    assert chance_mixed(1, 0.3) == pytest.approx(0.0) and prompt_value(8, 0.0) == prompt_value(8, 1.0) == 0.0
    fine = np.linspace(0.01, 0.99, 99)
    assert fine[np.argmax([prompt_value(10**4, p) for p in fine])] == pytest.approx(1 / 3, abs=0.01)


@given(
    st.lists(st.sampled_from([0.0, 0.05, 0.125, 0.25, 0.5, 0.75, 0.9, 1.0]), min_size=1, max_size=4),
    st.integers(1, 2),
    st.integers(3, 7),
    st.integers(0, 14),
)
@settings(max_examples=60, deadline=None)
def test_the_shares_are_the_best_of_all(rates, low, high, more):
    total = min(low * len(rates) + more, high * len(rates))
    found = allocate(rates, total, low, high, saturation=1.0)
    value = lambda ns: sum(prompt_value(n, p) for n, p in zip(ns, rates, strict=True))  # noqa: E731
    every = (ns for ns in itertools.product(range(low, high + 1), repeat=len(rates)) if sum(ns) == total)
    assert sum(found) == total and all(low <= n <= high for n in found)
    assert value(found) == pytest.approx(max(map(value, every)), abs=1e-12)


def test_what_is_left_goes_to_what_was_never_solved():
    # 1 - 2 * 2^-n is .5, .75, .875, .9375 for n = 2 to 5: p = 1/2 is saturated at 5; of 12 - 6, three are left for p =
    # 0
    assert allocate([0.5, 1.0, 0.0], 12, low=2, high=8, saturation=0.9) == [5, 2, 5]
    # nothing unsolved: what is left goes on by value, and to the solved only when all else is full
    assert allocate([0.5, 1.0], 12, low=2, high=8, saturation=0.9) == [8, 4]
    assert allocate([0.0, 0.0], 7, low=2, high=8) == [4, 3]


def test_the_pool_shares_out_exactly_what_a_uniform_one_would_spend():
    part = budgeted_pool(size=6, low=2, high=64)
    first, state, told = asked(part, [], 0, n=4, rollouts=8)
    assert [r.n for r in first] == [8] * 4 and told == {"most": 8, "unsolved": 0, "solved": 0}
    rates = dict(zip([r.task.id for r in first], [0.0, 1.0, 0.5, 0.125], strict=True))
    history = History(tasks={t: {"reward": p} for t, p in rates.items()})
    again, _, told = asked(part, [], 0, n=4, rollouts=8, history=history)
    shares = {rates[r.task.id]: r.n for r in again}
    assert (
        sum(shares.values()) == 32
        and shares[1.0] == 2
        and shares[0.125] > shares[0.5]
        and told["unsolved"] == told["solved"] == 1
    )
    later, _, _ = asked(part, [], state, n=4, rollouts=8, history=history)
    assert sum(r.n for r in later) == 32 and all(r.n == 8 for r in later if r.task.id not in rates)


def test_equal_bounds_are_grpo_on_a_pool():
    history = History(tasks={f"t{i}": {"reward": (i % 5) / 4} for i in range(10**4)})
    mine, _, _ = asked(budgeted_pool(size=9, low=8, high=8), [], 5, n=6, rollouts=8, history=history)
    plain, _, _ = asked(pool(size=9), [], 5, n=6, rollouts=8)
    assert mine == plain
    method, parent = registry.methods.get("knapsack")(), registry.methods.get("grpo")()
    assert {place for place, _, _ in method.diff(parent)} == {"select"}


def test_a_select_tells_numbers_and_the_step_logs_them(letters):
    method = registry.methods.get("knapsack")(groups=2, rollouts=4, size=2)
    loop = assemble.loop(
        method,
        registry.tasks.get("bandit")(),
        StartModel(mini(264), letters, False, {}),
        assemble.RunSettings(steps=2, max_tokens=3),
    )
    metrics, groups, _ = asyncio.run(loop.advance())
    assert metrics["select/most"] == 4 and [len(g.episodes) for g in groups] == [4, 4]
    assert loop.state.history.scalars["select/most"] == [4.0]


def test_a_prompt_has_at_most_128_rollouts_and_at_least_two():
    _, _, told = asked(budgeted_pool(), [], 0, n=2, rollouts=100)
    assert told["most"] == 100
    first, _, _ = asked(budgeted_pool(), [], 0, n=2, rollouts=100)
    history = History(tasks={first[0].task.id: {"reward": 0.0}, first[1].task.id: {"reward": 1.0}})
    # of 200: 2 each, then 126 to the one never solved, up to 128, and what is left to the one always solved
    found, _, told = asked(budgeted_pool(), [], 0, n=2, rollouts=100, history=history)
    assert [r.n for r in found] == [128, 72] and told == {"most": 128, "unsolved": 1, "solved": 1}
    # of 100 all but two go to the one never solved
    found, _, _ = asked(budgeted_pool(), [], 0, n=2, rollouts=50, history=history)
    assert [r.n for r in found] == [98, 2]
