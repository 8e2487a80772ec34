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
from selfteach.methods.bapo import balanced_bounds, balanced_clip, share_kept, within_bounds
from selfteach.objective.policy import clipped_ratio

quick = settings(max_examples=40, deadline=None, derandomize=True)


RANGES = ((0.6, 0.9), (1.2, 3.0))


def test_bounds_are_searched_until_the_good_have_their_share():
    ratio, adv = f64(2.0, 0.5, 0.5), f64(1.0, -1.0, -1.0)
    # at (0.6, 1.2): 1.2 good against 0.6 + 0.6 bad: a share of 1/2, enough as it is
    assert balanced_bounds(ratio, adv, 0.5, *RANGES, 0.05) == (0.6, 1.2, pytest.approx(0.5))
    # 3 bad ones: high / (high + 1.8) is 0.4375 at 1.4 and 0.4545 at 1.5; low stays where it is
    worse = torch.cat([ratio, f64(0.5)]), torch.cat([adv, f64(-1.0)])
    low, high, share = balanced_bounds(*worse, 0.45, *RANGES, 0.1)
    assert (low, high, share) == (0.6, pytest.approx(1.5), pytest.approx(1.5 / 3.3))
    # out of reach: high up to the ratio 2 gives 2 / 3.8, so both end at their largest, and the bad count by 0.9
    low, high, share = balanced_bounds(*worse, 0.6, *RANGES, 0.1)
    assert (low, high, share) == (0.9, 3.0, pytest.approx(2 / 4.7))
    # the released order: low first, which makes it worse here (1.2 / 3.9), and then even 2 / 4.7 is not enough
    low, high, share = balanced_bounds(*worse, 0.45, *RANGES, 0.1, "low")
    assert (low, high, share) == (0.9, 3.0, pytest.approx(2 / 4.7))
    # 1 good of ratio 2 against bad of 1.5: low does nothing (0.9 < 1.5), high stops as soon as it is enough: 1.5 / 3.0
    low, high, share = balanced_bounds(f64(2.0, 1.5), f64(1.0, -1.0), 0.5, *RANGES, 0.1, "low")
    assert (low, high, share) == (0.9, pytest.approx(1.5), pytest.approx(0.5))
    # the released code's P / N >= 1/2 is a share of a third: 1.2 good against 0.6 * 4 bad is enough for it as it is
    third = torch.cat([ratio, f64(0.5, 0.5)]), torch.cat([adv, f64(-1.0, -1.0)])
    assert balanced_bounds(*third, 1 / 3, *RANGES, 0.1) == (0.6, 1.2, pytest.approx(1 / 3))
    assert balanced_bounds(f64(1.0), f64(1.0), 0.5, *RANGES, 0.1, "low") == (0.6, 1.2, 1.0)
    with pytest.raises(BadValue, match="step must be above 0"):
        balanced_bounds(ratio, adv, 0.5, *RANGES, 0.0)
    with pytest.raises(BadValue, match="first must be high or low"):
        balanced_bounds(ratio, adv, 0.5, *RANGES, 0.1, "both")


@quick
@given(st.integers(0, 999))
def test_bounds_are_those_of_the_printed_algorithm_which_raises_low_by_steps_of_its_own(seed):
    rng = np.random.default_rng(seed)
    ratio, adv = np.exp(rng.normal(0, 0.7, 8)), rng.normal(-0.2, 1.0, 8)
    low, high = 60, 120  # in hundredths
    good = lambda low, high: float(np.minimum(ratio, high / 100)[adv > 0] @ adv[adv > 0])  # noqa: E731
    bad = lambda low, high: float(np.maximum(ratio, low / 100)[adv < 0] @ -adv[adv < 0])  # noqa: E731
    while good(low, high) < 0.4 * (good(low, high) + bad(low, high)) and low + 2 <= 90:
        low, high = (low, high + 5) if high + 5 <= 300 else (low + 2, high)
    got = balanced_bounds(torch.tensor(ratio), torch.tensor(adv), 0.4, *RANGES, 0.05)
    assert got[:2] == pytest.approx((low / 100, high / 100))


def test_what_an_unlikely_good_token_may_add_is_what_the_good_need():
    # A = +-1/sqrt(2), ratios 2 and 2.3. For a share of 0.4 the good one must count 2.3 * 2/3 = 1.533: the bound goes
    # from 1.2 to 1.55, its ratio lies beyond and has no gradient; the bad one has its ratio times A over two tokens.
    group, live = [single_turn_group([(5,), (6,)], [1.0, 0.0])], [math.log(2) - 1, math.log(2.3) - 1]
    assert token_gradient(of("bapo"), group, live) == pytest.approx([0, 2.3 * math.sqrt(0.5) / 2], rel=1e-5)
    # For a share of 0.45 it must count 2.3 * 9/11 = 1.88: the bound 1.9 leaves a ratio of 1.89 inside.
    live = [math.log(1.89) - 1, math.log(2.3) - 1]
    assert token_gradient(of("bapo", target=0.45), group, live)[0] == pytest.approx(
        -1.89 * math.sqrt(0.5) / 2, rel=1e-5
    )


def test_the_released_order_takes_bad_tokens_away_where_the_printed_one_lets_good_ones_in():
    # A = +-a, ratios 1.5 and 1.9 good, 0.7 and 2.5 bad: 2.4 against 3.2 is a share of 0.43, too little for
    # 0.45. Up to 1.3 high gives 2.6 / 5.8 = 0.448, and 1.35 is enough: 2.7 / 5.9 = 0.458. With low at 0.9 first the bad
    # are 3.4, and 1.4 is needed: 2.8 / 6.2 = 0.452; the bad token at 0.7 has lost its gradient.
    group = [single_turn_group([(5,), (6,), (7,), (8,)], [1.0, 1.0, 0.0, 0.0])]
    live = [math.log(r) - 1 for r in (1.5, 1.9, 0.7, 2.5)]
    for first, low, high in (("high", 0.6, 1.35), ("low", 0.9, 1.4)):
        got = token_gradient(of("bapo", target=0.45, first=first), group, live)
        assert [x == 0 for x in got] == [True, True, first == "low", False]
        (term,) = of("bapo", target=0.45, first=first).stage.updates[0].terms
        told = term.fn(logp=torch.tensor(live), old_logp=-torch.ones(4), adv=f64(1, 1, -1, -1), batch=torch.zeros(4))[2]
        assert [float(told[n]) for n in ("clip_low", "clip_high")] == pytest.approx([low, high])


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
    assert told["good_share"] >= 0.4 or (low, high) == pytest.approx((0.9, 3.0))


def test_a_run_reports_the_bounds_it_found(letters):
    method = of("bapo", groups=2, rollouts=3, sync=1).replace(reward=bandit(paid="spread").stage.reward)
    (told,) = advance(loop_of(method, letters))
    assert 0 <= told["policy/clip_fraction"] < 1
    assert 0.6 <= told["policy/clip_low"] <= 0.9 and 0 < told["policy/good_share"] < 1


def test_the_share_of_what_keeps_its_gradient_rises_with_both_bounds():
    # good 1.5 and 1, bad 0.7 and 1.2: at (0.6, 1.2) good 1.5 is clipped, at (0.9, 3) bad 0.7 is and good 1.5 is not
    ratio, adv = f64(1.5, 1.0, 0.7, 1.2), f64(1, 1, -1, -1)
    first, last = (within_bounds(ratio, adv, *bounds, 3.0) for bounds in ((0.6, 1.2), (0.9, 3.0)))
    assert first.tolist() == [False, True, True, True] and last.tolist() == [True, True, False, True]
    assert share_kept(ratio, adv, first) == pytest.approx(1 / 2.9)
    assert share_kept(ratio, adv, last) == pytest.approx(2.5 / 3.7)
    rows = {"logp": torch.log(ratio), "old_logp": f64(0, 0, 0, 0), "batch": torch.zeros(4, dtype=torch.long)}
    *_, told = balanced_clip(**rows, adv=adv, target=0.9)  # out of reach, so that both bounds end at their largest
    assert float(told["kept_share_initial"]) == pytest.approx(1 / 2.9)
    assert float(told["kept_share"]) == pytest.approx(2.5 / 3.7)


def test_bounds_steps_and_the_dual_clip_as_they_are_unless_told_otherwise():
    batch = torch.zeros(2, dtype=torch.long)

    def found(ratios: list[float], adv: list[float]) -> tuple[list[float], list[bool], list[float]]:
        l, kept, told = balanced_clip(logp=torch.log(f64(*ratios)), old_logp=f64(0, 0), adv=f64(*adv), batch=batch)
        return l.tolist(), kept.tolist(), [round(float(told[n]), 6) for n in ("clip_low", "clip_high", "good_share")]

    # good 2, bad 2.45: for a share of 0.4 it takes 2.45 * 2/3 = 1.633, so high goes up by 0.05 from 1.2 to 1.65
    assert found([2.0, 2.45], [1.0, -1.0]) == (
        pytest.approx([-2.0, 2.45]),
        [False, True],
        [0.6, 1.65, round(1.65 / 4.1, 6)],
    )
    # bad 9 is out of reach: both end at their largest, the share is 3 / 12; a ratio above 3 with A < 0 has no gradient
    assert found([5.0, 9.0], [1.0, -1.0]) == (pytest.approx([-5.0, 9.0]), [False, False], [0.9, 3.0, 0.25])
    assert found([1.2, 0.6], [1.0, -1.0])[1:] == ([True, True], [0.6, 1.2, round(2 / 3, 6)])
    # log-ratios end at 20 and -20
    l, kept, _ = balanced_clip(logp=f64(25, -25), old_logp=f64(0, 0), adv=f64(1, 1), batch=batch)
    assert l.tolist() == pytest.approx([-math.exp(20), -math.exp(-20)]) and kept.tolist() == [False, True]
