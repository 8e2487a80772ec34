"""AReaL: the decoupled objective by hand, and what it becomes where two of its three policies are one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.loops import advance, bandit, equal, loop_of, weights_of
from support.tensors import f64

from selfteach.core import Term
from selfteach.methods import areal
from selfteach.methods.areal import decoupled_ratio
from selfteach.objective.loss_weights import token_mean
from selfteach.objective.policy import clipped_ratio


def test_decoupled_ratio_by_hand():
    # u = p / p_prox  1.1  1.5  0.5  1.5  1.0      clip 0.2
    # w = p_prox / p_behav  0.5  1.5  1  1  3      cap 2
    # A               2    1    -1   -1   1
    # 0: in range, 0.5 * 1.1 * 2 = 1.1. 1: clipped at 1.2, 1.5 * 1.2 = 1.8, no gradient. 2: clipped at 0.8, no gradient.
    # 3: A < 0 and u > 1 is no gain, so not clipped: 1.5. 4: above the cap: nothing.
    u, w, adv = f64(1.1, 1.5, 0.5, 1.5, 1.0), f64(0.5, 1.5, 1, 1, 3), f64(2, 1, -1, -1, 1)
    old = f64(-1, -2, -0.5, -1, -2)
    prox = old + w.log()
    logp = (prox + u.log()).requires_grad_()
    loss, kept, metrics = decoupled_ratio(logp=logp, prox_logp=prox, old_logp=old, adv=adv, cap=2.0)
    assert loss.tolist() == pytest.approx([-1.1, -1.8, 0.8, 1.5, 0.0])
    assert kept.tolist() == [True, True, True, True, False]
    assert metrics["behaviour_weight"].tolist() == pytest.approx([0.5, 1.5, 1, 1, 0])
    loss.sum().backward()
    assert logp.grad is not None and logp.grad.tolist() == pytest.approx([-1.1, 0, 0, 1.5, 0])


def test_a_huge_weight_gives_no_nan():
    logp = f64(0.0, -1.0).requires_grad_()
    loss, kept, _ = decoupled_ratio(logp=logp, prox_logp=f64(0.0, -1.0), old_logp=f64(-2000, -1.0), adv=f64(1, 1))
    loss.sum().backward()
    assert kept.tolist() == [False, True] and logp.grad is not None and logp.grad.tolist() == [0, -1]
    whole = decoupled_ratio(logp=f64(0.0), prox_logp=f64(0.0), old_logp=f64(-3.0), adv=f64(1), cap=math.inf)[0]
    assert whole.tolist() == pytest.approx([-math.exp(3)])


def test_the_weight_is_one_on_fresh_data_and_corrects_old(letters):
    def trained(term, **change):
        method = bandit().replace(**change)
        update = replace(method.stage.updates[0], terms=(Term(term, loss_weights=token_mean()),), minibatches=4)
        loop = loop_of(method.replace(updates=(update,)), letters)
        return advance(loop, 6), weights_of(loop)

    fresh, _ = trained(decoupled_ratio())
    assert all(m["policy/behaviour_weight"] == pytest.approx(1, abs=1e-4) for m in fresh)
    (old, a), (_, b) = trained(decoupled_ratio(), staleness=3), trained(clipped_ratio(), staleness=3)
    assert not equal(a, b) and abs(old[-1]["policy/behaviour_weight"] - 1) > 1e-4


def test_it_runs_ahead_unless_it_is_told_not_to(letters):
    loop = loop_of(areal(groups=2, rollouts=2), letters)
    assert [m.get("staleness/max") for m in advance(loop, 6)] == [0, 1, 2, 3, 4, 4]
    loop = loop_of(areal(groups=2, rollouts=2), letters, staleness=0)
    assert [m.get("staleness/max") for m in advance(loop, 2)] == [None, None]
