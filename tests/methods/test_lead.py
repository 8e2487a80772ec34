"""LEAD by hand: target lengths, how near answers come to them, and the weight of correctness beside length."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import single_turn_group
from support.scores import Reader, by_sample

from selfteach.core import Block, RolloutGroup, Score
from selfteach.core.blocks import initial_state
from selfteach.core.errors import BadValue
from selfteach.core.scoring import score
from selfteach.methods.lead import efficiency, length_efficiency, norm_apart, target_length, weight_of_correctness


def of_lengths(*lengths: int) -> RolloutGroup:
    return single_turn_group([(5,) * n for n in lengths], [None] * len(lengths))


def scored(part: Block, group: RolloutGroup, state: Any = None) -> tuple[Any, Any]:
    cell = [state or initial_state(part)]
    found = asyncio.run(score(part, [group], Reader(), 5.0, state=cell))  # type: ignore[arg-type]
    return found, cell[0]


def test_the_length_that_is_aimed_at():
    length, right = np.array([10.0, 20.0, 60.0, 90.0]), np.array([True, True, True, False])
    aims = {t: target_length(length, right, t, 8, 128) for t in ("mean", "min", "median", "all")}  # type: ignore[arg-type]
    assert aims == {"mean": 30.0, "min": 10.0, "median": 20.0, "all": 45.0}
    assert target_length(length, right, "min", 16, 128) == 16 and target_length(length, right, "all", 8, 40) == 40
    assert target_length(length, np.zeros(4, bool), "mean", 8, 128) == 128


def test_how_near_a_length_comes():
    # of 20: 0.5 off at 10 and 30, 2 off at 60, clipped at -1
    length, right = np.array([10.0, 30.0, 60.0, 10.0]), np.array([True, True, False, False])
    assert length_efficiency(length, right, 20.0, "symmetric").tolist() == [0.5, 0.5, -1.0, 0.5]
    # a right answer never loses, a wrong one never gains
    assert length_efficiency(length, right, 20.0, "asymmetric").tolist() == [0.5, 0.0, -1.0, 0.0]
    assert length_efficiency(length, right, 20.0, "upper").tolist() == [0.0, -0.5, -1.0, 0.0]
    with pytest.raises(BadValue, match="mode"):
        length_efficiency(length, right, 20.0, "other")  # type: ignore[arg-type]


def test_the_weight_is_of_variation_and_of_what_is_left():
    # groups (1, 0) and (1, 1): mu 3/4, sigma^2 = mean(1/4, 0) + var(1/2, 1) = 1/8 + 1/16, cv = sqrt(3/16) / (3/4);
    # e of right answers (1/2) and (1, 0): mu 1/2, sigma^2 = mean(0, 1/4) + 0, cv = sqrt(1/8) / (1/2)
    cv_r, cv_e = math.sqrt(3 / 16) / 0.75, math.sqrt(1 / 8) / 0.5
    d_r, d_e = cv_r / (cv_r + cv_e) * 0.25, cv_e / (cv_r + cv_e) * 0.25
    correct = [np.array([1.0, 0.0]), np.array([1.0, 1.0])]
    efficient = [np.array([0.5]), np.array([1.0, 0.0])]
    assert weight_of_correctness(correct, efficient) == pytest.approx(d_r / (d_r + d_e))
    d_r, d_e = d_r * 0.25, d_e * 0.25
    assert weight_of_correctness(correct, efficient, 2.0) == pytest.approx(d_r / (d_r + d_e))
    assert weight_of_correctness([np.zeros(2), np.zeros(2)], [np.array([]), np.array([])]) == 1.0  # nothing is right
    # without a right answer length has no weight; where all is right, and all of a length, none has any
    assert weight_of_correctness([np.array([0.0, 0.0]), np.array([1.0, 0.0])], [np.array([]), np.array([])]) == 1.0
    assert weight_of_correctness([np.array([1.0, 1.0])], [np.array([1.0, 1.0])]) == 0.5


def test_the_reward_its_columns_and_the_moving_average():
    # lengths 20 and 40, right, and 15, wrong: the aim is 30, e = 2/3, 2/3, 1/2. One group: e does not vary, w -> 1.
    part = efficiency(judge=by_sample(1.0, 1.0, 0.0), decay=0.75)
    found, state = scored(part, of_lengths(20, 40, 15))
    assert [s.value for s in found["reward"].values()] == [1.0, 1.0, 0.0]
    assert [s.value for s in found["efficiency"].values()] == pytest.approx([2 / 3, 2 / 3, 0.5])
    assert state["weight"] == pytest.approx(0.75 * 0.5 + 0.25, abs=1e-3)
    assert [s.value for s in found["correctness_weight"].values()] == [state["weight"]] * 3
    parts = [s.parts for s in found["reward"].values()]
    assert parts[0]["target"] == 30 and parts[0]["efficiency"] == pytest.approx(2 / 3) and "efficiency" not in parts[2]
    # all right: nothing is left to gain but length, whose weight grows, and w falls to its floor
    part = efficiency(judge=by_sample(1.0, 1.0, 1.0), decay=0.0, floor=0.25)
    found, state = scored(part, of_lengths(20, 40, 15))
    assert state["weight"] == 0.0 and next(iter(found["correctness_weight"].values())).value == 0.25
    found, _ = scored(efficiency(judge=by_sample(1.0, 1.0, 1.0), static=0.875), of_lengths(20, 40, 15))
    assert next(iter(found["correctness_weight"].values())).value == 0.875
    # each of its ways to aim and to measure is read
    two = {"judge": by_sample(1.0, 1.0, 0.0), "decay": 0.75}
    for changed in (
        efficiency(target="min", **two),
        efficiency(mode="upper", **two),
        efficiency(min_target=100, **two),
        efficiency(limit=20, min_target=4, **two),
    ):
        other, _ = scored(changed, of_lengths(20, 40, 15))
        assert [s.value for s in other["efficiency"].values()] != pytest.approx([2 / 3, 2 / 3, 0.5])
    raised = scored(efficiency(judge=by_sample(1.0, 1.0, 0.0), alpha=2.0), of_lengths(20, 40, 15))[1]
    assert raised["weight"] == pytest.approx(0.95 * 0.5 + 0.05, abs=1e-3)


def test_unknown_rewards_count_in_nothing():
    found, state = scored(efficiency(judge=by_sample(None, None)), of_lengths(20, 40))
    assert [s.value for s in found["reward"].values()] == [None, None] and not found["efficiency"]
    assert state["weight"] == pytest.approx(0.5)
    assert "min_target" in (
        next(iter(scored(efficiency(min_target=9, limit=4), of_lengths(1))[0]["reward"].values())).error or ""
    )


def test_both_are_normalised_apart():
    rows = {"reward": np.array([1.0, 0.0, 0.0]), "efficiency": np.array([0.5, 0.5, 0.5]), "group": np.zeros(3, int)}
    adv = norm_apart(**rows, correctness_weight=np.full(3, 0.5), eps=0.0)["adv"].values
    assert adv == pytest.approx([math.sqrt(4 / 3) / 2, -math.sqrt(1 / 3) / 2, -math.sqrt(1 / 3) / 2])
    assert (norm_apart(**rows, correctness_weight=np.zeros(3))["adv"].values == 0).all()


def test_the_gradient_of_the_method_by_hand():
    # two answers of one token, right and wrong, the wrong one of the better length; at w = 3/4 both have
    # sqrt(1/2) (3/4 - 1/4) of opposite signs, which whitening makes sqrt(1/2); the weights are 1/2
    group = single_turn_group([(5,), (6,)], [1.0, 0.0])
    first, second = group.scores["reward"]
    scores = {
        **group.scores,
        "efficiency": {first: Score(-1.0), second: Score(1.0)},
        "correctness_weight": {first: Score(0.75), second: Score(0.75)},
    }
    got = token_gradient(of("lead"), [group._replace(scores=scores)], [-1.0, -1.0])
    assert got == pytest.approx([-math.sqrt(0.5) / 2, math.sqrt(0.5) / 2], rel=1e-4)
    scores["correctness_weight"] = {first: Score(0.25), second: Score(0.25)}
    turned = token_gradient(of("lead"), [group._replace(scores=scores)], [-1.0, -1.0])
    assert turned == pytest.approx([math.sqrt(0.5) / 2, -math.sqrt(0.5) / 2], rel=1e-4)
