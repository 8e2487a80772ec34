"""SEC: values of the arms and their probabilities by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.curriculum import answered, asked

from selfteach.core import BadValue, History
from selfteach.methods.sec import frontier_arms, softmax, updated_values


def test_the_value_of_an_arm_follows_its_mean_advantage():
    history = History(tasks={"t1": {"adv": 0.6}, "t2": {"adv": 0.2}, "t3": {"seen": 0.0}})
    # a: 0.25 * (0.6 + 0.2) / 2 + 0.75 * 0.8 = 0.7; nothing is known of b's only task; c is not in the step
    q = updated_values({"a": 0.8, "b": 0.3, "c": 0.1}, {"t1": "a", "t2": "a", "t3": "b"}, history, 0.25)
    assert q == pytest.approx({"a": 0.7, "b": 0.3, "c": 0.1})


def test_softmax_by_hand():
    assert softmax([0.0, np.log(3)], 1.0) == pytest.approx([0.25, 0.75])
    assert softmax([0.0, np.log(3)], 0.5) == pytest.approx([0.1, 0.9])  # 3^2 = 9
    assert softmax([1000.0, 0.0], 1.0) == pytest.approx([1.0, 0.0])


def test_the_arm_of_the_largest_advantage_is_sampled_most():
    select = frontier_arms(by="difficulty", temperature=0.05)
    first, state, metrics = asked(select, [], {"q": {}, "next": {}, "asked": {}}, n=60)
    assert [metrics[f"p/{arm}"] for arm in "012"] == pytest.approx([1 / 3] * 3) and {
        r.task.tags["difficulty"] for r in first
    } == {0, 1, 2}
    # arm 1 brought advantages of 0.8, the others none: Q = 0.5 * 0.8 = 0.4, p = e^8 / (e^8 + 2) = 0.99933
    history = History(tasks={r.task.id: {"adv": 0.8 if r.task.tags["difficulty"] == 1 else 0.0} for r in first})
    then, after, metrics = asked(select, [], state, n=60, history=history, step=1)
    assert after["q"] == pytest.approx({"0": 0.0, "1": 0.4, "2": 0.0}) and metrics["p/1"] == pytest.approx(
        0.99933, abs=1e-5
    )
    _, slow, _ = asked(select.replace(rate=0.25), [], state, n=60, history=history, step=1)
    assert slow["q"]["1"] == pytest.approx(0.2)  # 0.25 * 0.8
    assert sum(r.task.tags["difficulty"] == 1 for r in then) >= 58
    ids = [r.task.id for r in (*first, *then)]
    assert len(set(ids)) == len(ids), "a task came twice"
    assert asked(select, [[answered(first[0], [1.0])]], state)[0] == []
    with pytest.raises(BadValue, match="has no tag 'hops'"):
        asked(frontier_arms(by="hops"), [], {"q": {}, "next": {}, "asked": {}})


def test_the_first_values_are_halves_of_the_advantages_and_a_temperature_of_a_half_tells_them_apart():
    select = frontier_arms(by="difficulty")
    first, state, _ = asked(select, [], {"q": {}, "next": {}, "asked": {}}, n=60)
    history = History(tasks={r.task.id: {"adv": 0.8 if r.task.tags["difficulty"] == 1 else 0.0} for r in first})
    _, after, metrics = asked(select, [], state, n=60, history=history, step=1)
    # Q = 0.8 / 2 = 0.4; p = e^(0.4 / 0.5) / (e^0.8 + 2)
    assert after["q"]["1"] == pytest.approx(0.4) and metrics["p/1"] == pytest.approx(
        math.exp(0.8) / (math.exp(0.8) + 2)
    )
