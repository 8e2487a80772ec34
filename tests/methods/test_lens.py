"""LENS by hand: penalties by odds, in groups with a right answer and without."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.battery import of, same
from support.by_hand import token_gradient
from support.episodes import single_turn_group

from selfteach.credit.advantages import norm
from selfteach.methods.lens import confident_mistakes

# Group 0: all wrong, pi = 0.9, 0.8, 0.6, 0.5. Group 1: one right with pi = 0.9, wrong ones with 0.75 (the first of two
# tokens whose likelihoods 0.9 and 0.625 have that geometric mean) and 0.5. Group 2: two right
# with 0.6, wrong ones with 0.8 and 0.5.
ROWS: dict[str, Any] = {
    "reward": [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0],
    "old_logp": np.log([0.9, 0.8, 0.6, 0.5, 0.9, 0.9, 0.625, 0.5, 0.6, 0.6, 0.8, 0.5]),
    "seq": [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10],
    "group": [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2],
}
# D = 1.8: 0.9 / 0.9, 0.8 / 1, 0.6 / 1.2, 0.5 / 1.3; a quarter of each
NEGATIVE = [-1 / 4, -0.8 / 4, -0.5 / 4, -5 / 13 / 4]


def advantages(**more: Any) -> list[float]:
    return confident_mistakes(**ROWS, **more)["adv"].values.tolist()


def test_hesitant_mistakes_are_raised_where_no_answer_is_right():
    mean = sum(NEGATIVE) / 4  # -0.168
    got = advantages()[:4]
    assert got == pytest.approx([0.25 * (r - mean) for r in NEGATIVE])
    assert got[0] < got[1] < 0 < got[2] < got[3] and sum(got) == pytest.approx(0)


def test_difficulty_is_that_of_the_right_answers_or_twice_the_largest_confidence():
    # D_imp = 1 / (1/0.9 / 3) = 2.7, above 1.8: w = 0.75 / 1.95 and 0.5 / 2.2; a third of each, and no alpha
    first = norm(reward=[1.0, -0.75 / 1.95 / 3, -0.5 / 2.2 / 3], group=[0, 0, 0])["adv"].values
    # D_imp = 1 / (2/0.6 / 4) = 1.2, below 1.6: w = 0.8 / 0.8 and 0.5 / 1.1; a quarter of each
    second = norm(reward=[1.0, 1.0, -1 / 4, -0.5 / 1.1 / 4], group=[0] * 4)["adv"].values
    got = advantages(alpha=0.7)
    assert got[4:7] == pytest.approx(first.tolist()) and got[5] < got[6] < 0
    assert got[7:] == pytest.approx(second.tolist())


def test_a_right_answer_counts_in_difficulty_by_its_whole_probability():
    # one right of three, of two tokens of 0.9: 3 * 0.81 = 2.43, and not 3 * 0.9; above twice 0.9
    rows = {"reward": [1.0, 0.0, 0.0], "old_logp": np.log([0.9, 0.9, 0.5, 0.6]), "seq": [0, 0, 1, 2], "group": [0] * 3}
    shaped = [1.0, -0.5 / (2.43 - 0.5) / 3, -0.6 / (2.43 - 0.6) / 3]
    want = norm(reward=shaped, group=[0, 0, 0])["adv"].values
    assert confident_mistakes(**rows)["adv"].values == pytest.approx(want)


def test_each_part_can_be_left_out():
    assert advantages(centre=False)[:4] == pytest.approx([0.25 * r for r in NEGATIVE])
    assert advantages(confidence=False)[:4] == [0] * 4, "exactly: what is alike teaches nothing"
    assert advantages(confidence=False, centre=False)[:4] == pytest.approx([-0.25 / 4] * 4)
    grpos = [1.1547, -0.57735, -0.57735]
    assert advantages(mixed=False)[4:7] == pytest.approx(grpos, 1e-4) != pytest.approx(advantages()[4:7], 1e-4)
    same(of("lens", alpha=0.0, mixed=False), of("grpo"))


def test_an_unknown_reward_stays_unknown():
    reward = [0.0, math.nan, *ROWS["reward"][2:]]
    got = confident_mistakes(**{**ROWS, "reward": reward})["adv"].values
    assert np.isnan(got[:4]).all() and np.isfinite(got[4:]).all()


def test_a_group_without_a_right_answer_has_a_gradient():
    # pi = 0.8 and 0.5: advantages -3/22 and 3/22 of a quarter; every sequence weighs 1/2, a token of two 1/4.
    group, logp = single_turn_group([(5, 6), (7,)], [0.0, 0.0]), np.log([0.8, 0.8, 0.5])
    up = 0.25 * 3 / 22
    assert token_gradient(of("lens"), [group], logp, old_logp=logp) == pytest.approx([up / 4, up / 4, -up / 2])
    assert token_gradient(of("grpo"), [group], logp, old_logp=logp) == [0] * 3
