"""A*-PO: values from remembered rewards by hand, and its two stages."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from support.battery import of
from support.episodes import single_turn_group
from support.loops import advance, bandit, equal, loop_of, weights_of

from selfteach.core import BadValue
from selfteach.methods.a_star_po import remember_rewards, soft_advantage, soft_value


def test_values_from_remembered_rewards_by_hand():
    groups = [
        single_turn_group([(5,), (6,)], [1.0, 0.0], key="a"),
        single_turn_group([(5,), (6,)], [None, 0.0], key="b"),
    ]
    made, state = remember_rewards()(groups=groups, state={"a": [1.0]})
    assert made == [] and state == {"a": [1.0, 1.0, 0.0], "b": [0.0]}
    # a: 1/2 log((2 e^2 + 1) / 3) = 0.8303; b: 0; c was never measured
    columns, after = soft_advantage()(reward=[1.0, 0.0, 1.0, 1.0], task=np.array(["a", "a", "b", "c"]), state=state)
    value = 0.5 * math.log((2 * math.exp(2) + 1) / 3)
    assert (
        columns["adv"].values[:3] == pytest.approx([1 - value, -value, 1.0])
        and np.isnan(columns["adv"].values[3])
        and after is state
    )
    assert soft_value([1.0, 0.0, 0.0, 0.0], 1e4) == pytest.approx(0.25, abs=1e-4) and soft_value(
        [1.0, 0.0], 1e-3
    ) == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(BadValue, match="beta must be above 0"):
        soft_advantage(beta=0.0)(reward=[1.0], task=["a"], state=state)


def test_a_star_po_measures_first_and_then_draws_one_answer_a_prompt(letters):
    paid = bandit(paid="spread").stage.reward
    method = of("a_star_po", groups=4, samples=3, tasks=4)
    method = replace(method, stages=tuple(replace(s, reward=paid) for s in method.stages))
    loop = loop_of(method, letters)
    begin = weights_of(loop)
    (first,) = advance(loop)
    assert (first["stage"], first["rollout/episodes"], first["tokens/learned"]) == ("value", 12, 0) and equal(
        begin, weights_of(loop)
    )
    known = {k: list(v) for k, v in loop.state.blocks["shared/rewards"].items()}
    assert len(known) == 4 and all(len(v) == 3 for v in known.values())
    told = advance(loop, 2)
    assert [(m["stage"], m["rollout/episodes"]) for m in told] == [("main", 4)] * 2 and not equal(
        begin, weights_of(loop)
    )
    assert loop.state.blocks["shared/rewards"] == known
    _, batch = loop.current_step
    assert batch is not None
    want = [
        r - soft_value(known[t], 0.5) for r, t in zip(batch.get("reward", "seq"), batch.get("task", "seq"), strict=True)
    ]
    assert batch.get("adv", "seq") == pytest.approx(want)


def test_a_long_measurement_is_not_a_starved_run(letters):
    method = of("a_star_po", groups=1, samples=1, tasks=200)  # 25 steps without an update; 20 starve
    method = replace(method, stages=tuple(replace(s, reward=bandit(paid="alike").stage.reward) for s in method.stages))
    assert {m["stage"] for m in advance(loop_of(method, letters), 25)} == {"value"}


@pytest.mark.parametrize("name", ["groups", "samples", "tasks"])
def test_nothing_to_sample_is_refused_by_name(name):
    with pytest.raises(BadValue, match=f"a_star_po: {name} must be at least 1, not 0"):
        of("a_star_po", **{name: 0})
