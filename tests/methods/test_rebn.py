"""Return batch normalisation by hand: returns of turns, over what they are normalised, and what a token weighs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import single_turn_group

from selfteach.methods.rebn import turn_returns

# Two episodes: turns of 2, 1 and 1 tokens with rewards 0, 1, 2; one turn of two tokens with 0.
ROWS: dict[str, Any] = {
    "turn_reward": [np.nan, 0.0, 1.0, 2.0, np.nan, 0.0],
    "step": [0, 0, 1, 2, 3, 3],
    "seq": [0, 0, 0, 0, 1, 1],
    "batch": [0] * 6,
}


def test_the_return_of_a_turn_is_discounted_by_turns_and_not_by_tokens():
    # 2; 1 + 2 / 2 = 2; 0 + 2 / 2 = 1; and 0 of the other episode
    got = turn_returns(reward=[3.0, 0.0], **ROWS, gamma=0.5, normalise=False)
    assert got["adv"].values.tolist() == [1.0, 1.0, 2.0, 2.0, 0.0, 0.0] and got["turns"].values.tolist() == [3, 1]


def test_returns_are_normalised_over_the_turns_of_all_episodes():
    # 1, 2, 2, 0: mean 5/4, deviations -1/4, 3/4, 3/4, -5/4, their squares 44/16, over 3: std 0.9574
    std = np.sqrt(44 / 16 / 3)
    want = np.array([-0.25, -0.25, 0.75, 0.75, -1.25, -1.25]) / std  # a turn of two tokens counts once
    assert turn_returns(reward=[3.0, 0.0], **ROWS, gamma=0.5)["adv"].values == pytest.approx(want, rel=1e-6)
    equal = {**ROWS, "turn_reward": [np.nan, 0.0, 0.0, 0.0, np.nan, 0.0]}
    assert not turn_returns(reward=[0.0, 0.0], **equal)["adv"].values.any()


def test_without_rewards_of_turns_the_last_turn_has_the_reward():
    none = {**ROWS, "turn_reward": [np.nan] * 6}
    got = turn_returns(reward=[1.0, 4.0], **none, gamma=0.5, normalise=False)["adv"].values
    assert got.tolist() == [0.25, 0.25, 0.5, 1.0, 4.0, 4.0]


def test_no_groups_are_compared_and_a_turn_weighs_its_tokens():
    groups = [single_turn_group([(5, 5)], [1.0], "a"), single_turn_group([(6,)], [0.0], "b")]
    a = 0.5 / np.sqrt(0.5)  # of two turns, of two prompts: GRPO would see groups of one
    got = token_gradient(of("rebn"), groups, [-1.0] * 3, turn_reward=np.full(3, np.nan))
    assert got == pytest.approx([-a / 2, -a / 2, a / 2], rel=1e-5)
