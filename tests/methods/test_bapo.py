"""BAPO: the search for bounds by hand, and PPO's clip between them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import single_turn_group
from support.loops import advance, bandit, loop_of
from support.tensors import columns, f64, slope

from selfteach.core import BadValue
from selfteach.methods.bapo import balanced_bounds, balanced_clip
from selfteach.objective.policy import clipped_ratio

quick = settings(max_examples=40, deadline=None, derandomize=True)


def test_bounds_are_searched_until_the_good_have_their_share():
    ratio, adv = f64(2.0, 0.5, 0.5), f64(1.0, -1.0, -1.0)
    # at (0.6, 1.2): 1.2 good against 0.6 + 0.6 bad: a share of 1/2, enough as it is
    assert balanced_bounds(ratio, adv, 0.5, (0.6, 0.9), (1.2, 3.0), 0.05) == (0.6, 1.2, pytest.approx(0.5))
    # 3 bad ones: 1.2 / 3. Raising low makes it worse here (the bad count by low), up to 0.9: 1.2 / 3.9; then high, up
    # to the ratio 2: 2 / 4.7; beyond it nothing changes, so it ends at the largest bounds
    worse = torch.cat([ratio, f64(0.5)]), torch.cat([adv, f64(-1.0)])
    low, high, share = balanced_bounds(*worse, 0.5, (0.6, 0.9), (1.2, 3.0), 0.1)
    assert (low, high) == (pytest.approx(0.9), pytest.approx(3.0)) and share == pytest.approx(2 / 4.7)
    # 1 good of ratio 2 against bad of 1.5: low does nothing (0.9 < 1.5), high stops as soon as it is enough: 1.5 / 3.0
    low, high, share = balanced_bounds(f64(2.0, 1.5), f64(1.0, -1.0), 0.5, (0.6, 0.9), (1.2, 3.0), 0.1)
    assert (low, high, share) == (pytest.approx(0.9), pytest.approx(1.5), pytest.approx(0.5))
    # the released code's P / N >= 1/2 is a share of a third: 1.2 good against 0.6 * 4 bad is enough for it as it is
    third = torch.cat([ratio, f64(0.5, 0.5)]), torch.cat([adv, f64(-1.0, -1.0)])
    assert balanced_bounds(*third, 1 / 3, (0.6, 0.9), (1.2, 3.0), 0.1) == (0.6, 1.2, pytest.approx(1 / 3))
    assert balanced_bounds(f64(1.0), f64(1.0), 0.5, (0.6, 0.9), (1.2, 3.0), 0.1) == (0.6, 1.2, 1.0)
    with pytest.raises(BadValue, match="step must be above 0"):
        balanced_bounds(ratio, adv, 0.5, (0.6, 0.9), (1.2, 3.0), 0.0)


def test_what_an_unlikely_good_token_may_add_is_what_the_good_need():
    # A = +-1/sqrt(2), ratios 2 and 1.5. From 1.2 the upper bound goes up by 0.05 until the good have half, at 1.5: the
    # good token at 2 lies beyond and has no gradient; the bad one has its ratio times A over two tokens.
    group, live = [single_turn_group([(5,), (6,)], [1.0, 0.0])], [math.log(2) - 1, math.log(1.5) - 1]
    assert token_gradient(of("bapo"), group, live) == pytest.approx([0, 1.5 * math.sqrt(0.5) / 2], rel=1e-5)
    # For a share of 0.55 it must count up to 1.5 * 11/9 = 1.83: the bound 1.85 leaves a ratio of 1.84 inside.
    live = [math.log(1.84) - 1, math.log(1.5) - 1]
    assert token_gradient(of("bapo", target=0.55), group, live)[0] == pytest.approx(
        -1.84 * math.sqrt(0.5) / 2, rel=1e-5
    )


@quick
@given(st.integers(0, 999))
def test_balanced_clip_is_ppos_clip_between_the_bounds_it_found(seed):
    lp, old, _, _ = columns(seed, [12], spread=1.0)
    adv = torch.tensor(np.random.default_rng(seed).normal(-0.3, 1.0, size=12))
    batch = torch.zeros(12, dtype=torch.long)
    _, kept, told = balanced_clip(logp=lp, old_logp=old, adv=adv, batch=batch)
    low, high = float(told["clip_low"]), float(told["clip_high"])
    want = slope(lambda x: clipped_ratio(logp=x, old_logp=old, adv=adv, low=1 - low, high=high - 1, dual=3.0), lp)
    got = slope(lambda x: balanced_clip(logp=x, old_logp=old, adv=adv, batch=batch)[0][kept], lp)
    assert torch.allclose(got, want, atol=1e-12)
    assert 0.6 <= low <= 0.9 and 1.2 <= high <= 3.0
    assert told["good_share"] >= 0.5 or (low, high) == pytest.approx((0.9, 3.0))


def test_a_run_reports_the_bounds_it_found(letters):
    method = of("bapo", groups=2, rollouts=3, sync=1).replace(reward=bandit(paid="spread").stage.reward)
    (told,) = advance(loop_of(method, letters))
    assert 0 <= told["policy/clip_fraction"] < 1
    assert 0.6 <= told["policy/clip_low"] <= 0.9 and 0 < told["policy/good_share"] < 1


def test_bounds_steps_and_the_dual_clip_as_they_are_unless_told_otherwise():
    batch = torch.zeros(2, dtype=torch.long)

    def found(ratios: list[float], adv: list[float]) -> tuple[list[float], list[bool], list[float]]:
        l, kept, told = balanced_clip(logp=torch.log(f64(*ratios)), old_logp=f64(0, 0), adv=f64(*adv), batch=batch)
        return l.tolist(), kept.tolist(), [round(float(told[n]), 6) for n in ("clip_low", "clip_high", "good_share")]

    # good 2, bad 1.5: low up to 0.9 does nothing, high by 0.05 from 1.2 to 1.5, where the share is a half
    assert found([2.0, 1.5], [1.0, -1.0]) == (pytest.approx([-2.0, 1.5]), [False, True], [0.9, 1.5, 0.5])
    # bad 9 is out of reach: high ends at 3, the share is 3 / 12, and a ratio above 3 has no gradient where A < 0
    assert found([5.0, 9.0], [1.0, -1.0]) == (pytest.approx([-5.0, 9.0]), [False, False], [0.9, 3.0, 0.25])
    assert found([1.2, 0.6], [1.0, -1.0])[1:] == ([True, True], [0.6, 1.2, round(2 / 3, 6)])
    # log-ratios end at 20 and -20
    l, kept, _ = balanced_clip(logp=f64(25, -25), old_logp=f64(0, 0), adv=f64(1, 1), batch=batch)
    assert l.tolist() == pytest.approx([-math.exp(20), -math.exp(-20)]) and kept.tolist() == [False, True]
