"""Lite PPO by hand: the means and deviations that advantages are of, and each trick as a switch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from support.battery import of, same, with_weigh
from support.episodes import single_turn_group

from selfteach.core import BadValue
from selfteach.credit.advantages import center_and_scale, norm
from selfteach.credit.composers import per_trajectory
from selfteach.methods.lite_ppo import drop_truncated

# Group 0: mean 1/4, std 1/2; group 1: mean 3/4, std 1/2; group 2: all right. Batch: 8 of 12, variance
# (8 / 9 + 16 / 9) / 11 = 8 / 33.
REWARD, GROUP = [1.0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1], np.repeat([0, 1, 2], 4)
STD = math.sqrt(8 / 33)


def test_the_mean_is_of_the_group_and_the_deviation_of_the_batch():
    got = center_and_scale(reward=REWARD, group=GROUP, eps=0.0)["adv"].values
    want = np.array([0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75, 0, 0, 0, 0]) / STD
    assert got == pytest.approx(want)


def test_other_normalisations():
    grpo = center_and_scale(reward=REWARD, group=GROUP, std="group", eps=0.0)["adv"].values
    assert grpo == pytest.approx(norm(reward=REWARD, group=GROUP, eps=0.0)["adv"].values)
    batch = center_and_scale(reward=REWARD, group=GROUP, mean="batch", eps=0.0)["adv"].values
    assert batch == pytest.approx((np.array(REWARD) - 2 / 3) / STD)
    assert center_and_scale(reward=REWARD, group=GROUP, mean="none", std="none")["adv"].values.tolist() == REWARD
    assert center_and_scale(reward=[1.0, 1.0], group=[0, 1])["adv"].values.tolist() == [0, 0]
    # a group whose answers are nearly alike is blown up by its own deviation, and not by the batch's
    near = {"reward": [1.0, 1.001, 0.0, 1.0], "group": [0, 0, 1, 1], "eps": 0.0}
    assert abs(center_and_scale(**near, std="group")["adv"].values[0]) == pytest.approx(math.sqrt(0.5))
    assert abs(center_and_scale(**near)["adv"].values[0]) < 0.002
    with pytest.raises(BadValue, match="std must be over group, batch or none"):
        center_and_scale(reward=[1.0], group=[0], std="prompt")


def test_an_unknown_reward_stays_unknown():
    got = center_and_scale(reward=[1.0, math.nan, 1.0, 0.0], group=[0, 0, 1, 1], std="group")["adv"].values
    assert np.isnan(got).tolist() == [True, True, False, False]
    assert np.isnan(center_and_scale(reward=[1.0, math.nan, 1.0, 0.0], group=[0, 0, 1, 1])["adv"].values).all()


def test_with_grpos_tricks_it_is_grpo():
    same(of("lite_ppo", std="group", loss="sequence", minibatches=1), of("grpo"))
    same(of("lite_ppo", std="group", minibatches=1), with_weigh(of("grpo"), "token_mean"))
    with pytest.raises(AssertionError):
        same(of("lite_ppo", std="group", minibatches=1), of("lite_ppo", minibatches=1))


def test_answers_that_were_cut_are_filtered_and_still_count_in_means():
    assert drop_truncated(truncated=[0.0, 1.0])["keep"].values.tolist() == [1, 0]
    names = [p.name for p in of("lite_ppo", overlong_filter=True).stage.credit]
    assert names == ["per_trajectory", "center_and_scale", "drop_truncated"]
    group = single_turn_group([(5,), (6,)], [1.0, 0.0])
    e = group.episodes[1]
    e.trajectories = [replace(e.trajectories[0], status="length")]
    assert [x.given["truncated"][1] for x in per_trajectory(groups=[group])] == [0.0, 1.0]
