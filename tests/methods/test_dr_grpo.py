"""Dr. GRPO by hand: centred rewards over a constant length."""

from __future__ import annotations

import pytest
from support.battery import of, same, with_weigh
from support.by_hand import token_gradient
from support.episodes import single_turn_group

from selfteach.credit.advantages import center


def test_neither_deviation_nor_length_divides():
    # mean 1/4: A = 3/4, -1/4; w = 1 / (4 * 10)
    group = [single_turn_group([(5,), (6, 7), (8,), (9,)], [1.0, 0.0, 0.0, 0.0])]
    want = [-0.75 / 40, *[0.25 / 40] * 4]
    assert token_gradient(of("dr_grpo", limit=10), group, [-1.0] * 5) == pytest.approx(want)


def test_it_is_grpo_centred_over_a_constant_length():
    plain = of("grpo").replace(credit=(of("grpo").stage.credit[0], center(by="group")))
    same(of("dr_grpo", limit=64), with_weigh(plain, "constant_length", limit=64))
