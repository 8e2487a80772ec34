"""GRPO and its readings in other libraries, token by token by hand."""

from __future__ import annotations

import math

import pytest
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import single_turn_group

# One winner of four; the second answer has two tokens. mean 1/4, std over n - 1: sqrt((9/16 + 3/16) / 3) = 1/2, so A is
# 3/2 and -1/2. S = 4, N = 5.
GROUP = [single_turn_group([(5,), (6, 7), (8,), (9,)], [1.0, 0.0, 0.0, 0.0])]
ON_POLICY = [-1.0] * 5


def ratios(*r: float) -> list[float]:
    """Log-probabilities of the live policy, for an old_logp of -1."""
    return [math.log(x) - 1.0 for x in r]


def test_a_token_is_pushed_by_its_answers_deviation_over_its_length():
    # w = 1 / (S len): -3/2 / 4; 1/2 / 8, twice; 1/2 / 4
    want = [-0.375, 0.0625, 0.0625, 0.125, 0.125]
    assert token_gradient(of("grpo"), GROUP, ON_POLICY) == pytest.approx(want, rel=1e-5)


def test_the_clip_ends_a_push_in_its_direction_only():
    # up and good beyond 1.2, down and bad below 0.8: nothing; down and good, up and bad: the ratio times
    got = token_gradient(of("grpo"), GROUP, ratios(1.3, 0.7, 1.3, 0.9, 3.5))
    assert got == pytest.approx([0, 0, 1.3 * 0.0625, 0.9 * 0.125, 3.5 * 0.125], rel=1e-5)
    assert token_gradient(of("grpo", clip=0.4), GROUP, ratios(1.3, 1, 1, 1, 1))[0] == pytest.approx(
        -1.3 * 0.375, rel=1e-5
    )


def test_beta_pulls_each_token_to_the_reference():
    # k3's slope is 1 - ref / pi = 1 - 1/2, weighed like the rest; beta 0.1
    ref = [-1.0 - math.log(2)] * 5
    plain, pulled = (
        token_gradient(of("grpo"), GROUP, ON_POLICY),
        token_gradient(of("grpo", beta=0.1), GROUP, ON_POLICY, ref_logp=ref),
    )
    assert [b - a for a, b in zip(plain, pulled, strict=True)] == pytest.approx(
        [0.05 * w for w in (1 / 4, 1 / 8, 1 / 8, 1 / 4, 1 / 4)]
    )


def test_a_group_of_equal_rewards_gives_no_gradient():
    equal = [single_turn_group([(5,), (6,)], [0.3, 0.3])]
    assert token_gradient(of("grpo"), equal, [-1.0, -1.0]) == [0.0, 0.0]


def test_trl_weighs_tokens_alike_and_adds_to_the_deviation():
    # N = 5; 3/4 and 1/4 over 0.5001
    want = [-0.75 / 0.5001 / 5, *[0.25 / 0.5001 / 5] * 4]
    assert token_gradient(of("grpo_trl"), GROUP, ON_POLICY) == pytest.approx(want, rel=1e-12)


def test_verl_clips_a_third_time_and_keeps_the_reward_of_a_group_of_one():
    # bad answers beyond a ratio of 3 are held
    want = [-1.5 / 5, 0.5 / 5, 0.0, 2.9 * 0.5 / 5, 0.5 / 5]
    assert token_gradient(of("grpo_verl"), GROUP, ratios(1, 1, 3.1, 2.9, 1)) == pytest.approx(want, rel=1e-5)
    alone = [single_turn_group([(5,)], [0.7])]
    assert token_gradient(of("grpo_verl"), alone, [-1.0]) == [-0.7] and token_gradient(of("grpo"), alone, [-1.0]) == [0]


def test_what_trl_and_verl_call_their_options_can_be_given():
    # one right answer of two tokens, one wrong one: advantages +-0.5 / std, std = 0.7071 (+ 1e-6)
    pair = [single_turn_group([(5, 6), (7,)], [1.0, 0.0])]
    adv = 0.5 / (math.sqrt(0.5) + 1e-6)
    higher = token_gradient(of("grpo_verl", high=0.28), pair, ratios(1.25, 1.3, 1))
    assert higher == pytest.approx([-1.25 * adv / 3, 0.0, adv / 3], rel=1e-5)
    assert token_gradient(of("grpo_verl"), pair, ratios(1.25, 1.3, 1))[0] == 0.0
    lower = token_gradient(of("grpo_trl", low=0.1), pair, ratios(1, 1, 0.85))
    assert lower[2] == 0.0 and token_gradient(of("grpo_trl"), pair, ratios(1, 1, 0.85))[2] > 0
    # k3's slope 1 - ref / pi = 1/2, weighed as the rest: a third each
    ref = [-1.0 - math.log(2)] * 3
    plain = token_gradient(of("grpo_trl"), pair, [-1.0] * 3)
    pulled = token_gradient(of("grpo_trl", beta=0.1), pair, [-1.0] * 3, ref_logp=ref)
    assert [b - a for a, b in zip(plain, pulled, strict=True)] == pytest.approx([0.05 / 3] * 3)
    for name in ("grpo_trl", "grpo_verl"):
        (update,) = of(name, epochs=2, minibatches=4).stage.updates
        assert (update.epochs, update.minibatches) == (2, 4)


def test_summed_tokens_are_averaged_over_answers_alone():
    want = [-1.5 / 4, *[0.5 / 4] * 4]
    assert token_gradient(of("grpo_sum"), GROUP, ON_POLICY) == pytest.approx(want, rel=1e-5)
