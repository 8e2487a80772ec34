"""RLOO and REINFORCE by hand: the leave-one-out baseline, and that of earlier batches."""

from __future__ import annotations

import pytest
import torch
from support.battery import Study, groups_of, of
from support.by_hand import token_gradient
from support.episodes import single_turn_group

from selfteach.credit.advantages import center

GROUP = [single_turn_group([(5,), (6, 7), (8,)], [1.0, 0.0, 0.0])]


def test_each_answer_is_compared_with_its_siblings_and_its_tokens_summed():
    # A = 1 - 0, 0 - 1/2, 0 - 1/2; S = 3
    want = [-1 / 3, 1 / 6, 1 / 6, 1 / 6]
    assert token_gradient(of("rloo", beta=0.0), GROUP, [-9.0] * 4) == pytest.approx(want), (
        "no ratio: live logp does not matter"
    )


def test_the_kl_is_part_of_the_reward():
    assert str(of("rloo").stage.credit[1]) == str(of("reinforce").stage.credit[1]) == "kl_in_reward(beta=0.03)"
    # beta 1/10, log-ratios of 1 a token: R = 0.9, -0.2, -0.1. A = 0.9 + 0.15, -0.2 - 0.4, -0.1 - 0.35
    got = token_gradient(of("rloo", beta=0.1), GROUP, [-1.0] * 4, ref_logp=[-2.0] * 4)
    assert got == pytest.approx([-1.05 / 3, 0.2, 0.2, 0.15])


def test_reinforce_begins_without_a_baseline():
    # The first batch has no earlier ones: A = R. With beta as above.
    assert token_gradient(of("reinforce", beta=0.0), GROUP, [-1.0] * 4) == pytest.approx([-1 / 3, 0, 0, 0])
    got = token_gradient(of("reinforce", beta=0.1), GROUP, [-1.0] * 4, ref_logp=[-2.0] * 4)
    assert got == pytest.approx([-0.3, 0.2 / 3, 0.2 / 3, 0.1 / 3])
    assert of("reinforce").stage.credit[-1].name == "moving_baseline"


def test_leave_one_out_is_n_over_n_minus_one_of_centred_rewards():
    plain = of("rloo").replace(credit=(*of("rloo").stage.credit[:-1], center(by="group")))
    a, b = Study(of("rloo"), groups_of()), Study(plain, groups_of())
    for name, g in a.gradient.items():
        assert torch.allclose(g, b.gradient[name] * 4 / 3, atol=1e-12)  # groups of four
