"""REC, OPMD, AsymRE: ranges, drops and weights by hand, and what they reduce to."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.battery import Study, groups_of, of, same_gradient, with_weigh
from support.by_hand import token_gradient
from support.episodes import single_turn_group
from support.tensors import columns, f64, slope

from selfteach.core import BadValue
from selfteach.methods.rec import baseline_shift, exponentially_weighted, keep_balanced, ranged_reinforce
from selfteach.objective.policy import clipped_ratio

quick = settings(max_examples=40, deadline=None, derandomize=True)


def test_ranges_by_hand():
    # eps 0.2; far: below 0.4 for good, above 3 for bad
    ratios = [0.3, 0.7, 1.0, 1.5, 3.5]
    want = {
        ("one_side", 1): [1, 1, 1, 0, 0],
        ("one_side", -1): [0, 0, 1, 1, 1],
        ("two_side", 1): [0, 0, 1, 0, 0],
        ("two_side", -1): [0, 0, 1, 0, 0],
        ("ring", 1): [1, 0, 1, 0, 0],
        ("ring", -1): [0, 0, 1, 0, 1],
        ("none", 1): [1, 1, 1, 1, 1],
    }
    lp = torch.log(f64(*ratios))
    for (mask, sign), kept in want.items():
        for importance in (False, True):
            given = {
                "old_logp": torch.zeros_like(lp),
                "adv": torch.full_like(lp, 0.5 * sign),
                "mask": mask,
                "importance": importance,
            }
            _, within, told = ranged_reinforce(logp=lp, **given)
            assert within.tolist() == [bool(k) for k in kept]
            assert (~told["clip_fraction"]).tolist() == [bool(k) for k, x in zip(kept, given["adv"], strict=True) if x]
            weight = ratios if importance else [1.0] * 5
            grad = slope(lambda x, g=given: ranged_reinforce(logp=x, **g)[0], lp)
            assert grad.tolist() == pytest.approx([-0.5 * sign * w * k for w, k in zip(weight, kept, strict=True)])
    with pytest.raises(BadValue, match="mask must be one of"):
        ranged_reinforce(logp=lp, old_logp=lp, adv=lp, mask="both")


@quick
@given(st.integers(0, 999), st.sampled_from([(0.2, 0.2), (0.6, 2.0)]))
def test_one_side_with_importance_is_ppos_clip_in_gradient(seed, eps):
    lp, old, _, _ = columns(seed, [9], spread=1.0)
    a = torch.tensor(np.random.default_rng(seed).normal(size=9))
    ours = slope(
        lambda x: ranged_reinforce(logp=x, old_logp=old, adv=a, importance=True, low=eps[0], high=eps[1])[0], lp
    )
    assert torch.allclose(
        ours, slope(lambda x: clipped_ratio(logp=x, old_logp=old, adv=a, low=eps[0], high=eps[1]), lp), atol=1e-12
    )


def test_rec_is_grpo_with_importance_and_std():
    same_gradient(
        Study(of("rec", importance=True, std=True), groups_of()),
        Study(with_weigh(of("grpo"), "token_mean"), groups_of()),
        1e-12,
    )
    with pytest.raises(AssertionError):
        same_gradient(Study(of("rec", std=True), groups_of()), Study(with_weigh(of("grpo"), "token_mean"), groups_of()))


def test_off_policy_reinforce_can_have_the_wrong_sign_and_importance_weights_correct_it():
    """Three arms, sampled by mu while the policy is pi: the middle reward is above mu's mean and below pi's."""
    reward, pi = np.array([1.0, 0.5, 0.0]), torch.tensor([0.6, 0.39, 0.01], dtype=torch.float64)
    mu = torch.tensor([0.01, 0.5, 0.49], dtype=torch.float64)
    true = pi * (torch.tensor(reward) - (pi * torch.tensor(reward)).sum())  # d J / d logits

    def ascent(adv: torch.Tensor, **hyper_parameters: Any) -> torch.Tensor:
        theta = pi.log().requires_grad_()
        (
            mu
            * ranged_reinforce(logp=theta.log_softmax(0), old_logp=mu.log(), adv=adv, mask="none", **hyper_parameters)[
                0
            ]
        ).sum().backward()
        return -theta.grad  # type: ignore[operator]

    adv = torch.tensor(reward) - (mu * torch.tensor(reward)).sum()
    # mu's mean is 0.26: mu A = (0.0074, 0.12, -0.1274); pi's is 0.795: pi A = (0.123, -0.115, -0.008); their product is
    # -0.012
    assert ascent(adv).tolist() == pytest.approx([0.0074, 0.12, -0.1274], abs=1e-4)
    assert float(ascent(adv) @ true) == pytest.approx(-0.0119, abs=1e-3)
    assert torch.allclose(ascent(adv, importance=True), true, atol=1e-12)


def test_opmd_is_its_formula_by_autograd():
    """-A sum logp + tau/2 (sum d)^2 by plain autograd, mean over answers, against the method's own term."""
    (term,) = of("opmd", tau=0.3).stage.updates[0].terms
    lp, old, a, seq = columns(5, [3, 1, 2])
    ours = slope(lambda x: term.coef * term.fn(logp=x, ref_logp=old, adv=a, seq=seq), lp)  # type: ignore[operator]

    def plain(x):
        total = lambda y: torch.zeros(3, dtype=x.dtype).index_add(0, seq, y)  # noqa: E731
        return -a * total(x) + 0.15 * total(x - old) ** 2

    assert term.fn.columns["old_logp"] == "token" and torch.allclose(ours, slope(plain, lp), atol=1e-12)


def test_asymre_lowers_the_baseline_of_every_group():
    assert baseline_shift(adv=[0.5, -0.5, 0.0], by=0.3)["adv"].values == pytest.approx([0.8, -0.2, 0.3])
    assert baseline_shift(adv=[0.5, -0.5, 0.0])["adv"].values == pytest.approx([0.6, -0.4, 0.1])
    study = Study(of("asymre", tau=0.2), groups_of())
    centred = Study(of("rec", mask="none"), groups_of())
    assert study.batch.get("adv", "seq") == pytest.approx(centred.batch.get("adv", "seq") + 0.2)
    same_gradient(Study(of("asymre", tau=0.0), groups_of()), centred, 1e-12)


def test_red_weight_is_exponential_in_the_advantage():
    # A = +-1/2 for rewards 1 and 0; exp(+-1/2) at temperature 1, exp(+-1/4) at 2
    assert exponentially_weighted(adv=[0.5, -0.5])["adv"].values == pytest.approx(
        [0.5 * math.exp(0.5), -0.5 * math.exp(-0.5)]
    )
    group = [single_turn_group([(5,), (6,)], [1.0, 0.0])]
    got = token_gradient(of("rec", mask="none", temperature=2.0), group, [-1.0, -1.0])
    assert got == pytest.approx([-0.25 * math.exp(0.25), 0.25 * math.exp(-0.25)])


def test_asymre_by_hand():
    # A = 1/2 + 0.1, -1/2 + 0.1, over two tokens; no ratio
    group = [single_turn_group([(5,), (6,)], [1.0, 0.0])]
    assert token_gradient(of("asymre"), group, [-3.0, -3.0]) == pytest.approx([-0.3, 0.2])


def test_opmd_by_hand():
    # S = 2, A = +-1/2, tau 0.1. d / dlogp = (-A + tau d) / S with d the answer's log-ratio, 1/2 - 1/4 and 1.
    group = [single_turn_group([(5, 6), (7,)], [1.0, 0.0])]
    got = token_gradient(of("opmd"), group, [-0.5, -1.25, 0.0])
    assert got == pytest.approx([(-0.5 + 0.025) / 2] * 2 + [(0.5 + 0.1) / 2])


def test_red_drop_keeps_as_many_bad_answers_as_good_ones():
    reward, group = np.array([1.0, 0, 0, 0, 1, 1, 0, 5]), np.array([0, 0, 0, 0, 1, 1, 1, 2])
    seq = np.repeat(np.arange(8), 2)
    ids = np.arange(16)
    keep = keep_balanced(reward=reward, group=group, id=ids, seq=seq)["keep"].values
    assert keep[0] == 1 and keep[1:4].sum() == 1 and keep[4:].tolist() == [1, 1, 1, 1]
    order = np.array([3, 0, 2, 1, 4, 5, 6, 7])
    reordered = np.concatenate([ids[seq == i] for i in order])
    again = keep_balanced(reward=reward[order], group=group[order], id=reordered, seq=seq)["keep"].values
    assert again.tolist() == keep[order].tolist(), "which are dropped depends on their tokens, not on their order"
    two_of_three = keep_balanced(reward=[1.0, 0.0, 0.0], group=[0, 0, 0], id=[7, 8, 9], seq=[0, 1, 2])["keep"].values
    assert two_of_three[0] == 1 and two_of_three[1:].sum() == 1
    unknown = keep_balanced(reward=[np.nan, 0.0], group=[0, 0], id=[1, 2], seq=[0, 1])["keep"].values
    assert np.isnan(unknown).all()
    kept = Study(of("rec", drop=True, mask="none"), groups_of())
    adv = kept.batch.get("adv", "seq")
    assert np.bincount(kept.batch.get("group", "seq"), weights=adv) == pytest.approx(0, abs=1e-12), (
        "the baseline is that of the answers kept"
    )


def test_opmd_without_a_penalty_is_refused_by_name():
    with pytest.raises(BadValue, match="opmd: tau must be above 0, not 0"):
        of("opmd", tau=0)
