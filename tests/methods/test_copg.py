"""CoPG: its gradient as that of a squared loss, and its fixed point on samples of any policy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import single_turn_group
from support.tensors import columns, f64, slope

from selfteach.core import BadValue
from selfteach.core.blocks import measures
from selfteach.methods.copg import contrastive, gap, regularised_reward


def test_the_gradient_of_the_method_by_hand():
    # beta 1/2, logp - ref = 1 | 2 + 0 | 0: R = 1 - 1/2, 0 - 1, 1 = 1/2, -1, 1. Minus the mean of the two others:
    # 1/2 - 0 = 1/2, -1 - 3/4 = -7/4, 1 + 1/4 = 5/4. Each of three sequences weighs 1/3.
    group = single_turn_group([(5,), (6, 7), (8,)], [1.0, 0.0, 1.0])
    given: dict[str, Any] = {"ref_logp": [-2.0, -3.0, -1.0, -1.0]}
    got = token_gradient(of("copg", beta=0.5), [group], [-1.0] * 4, **given)
    assert got == pytest.approx([-0.5 / 3, 1.75 / 3, 1.75 / 3, -1.25 / 3])
    # the siblings' plain rewards: 1/2, 1, 1/2; and none
    value = token_gradient(of("copg", beta=0.5, baseline="value"), [group], [-1.0] * 4, **given)
    assert value == pytest.approx([0.0, 2 / 3, 2 / 3, -0.5 / 3], abs=1e-12)
    none = token_gradient(of("copg", beta=0.5, baseline="none"), [group], [-1.0] * 4, **given)
    assert none == pytest.approx([-0.5 / 3, 1 / 3, 1 / 3, -1 / 3])


def test_how_far_answers_are_from_their_siblings_by_hand():
    # R as above: 1/2, -1, 1 are off the mean of the two others by 1/2, 7/4, 5/4; rewards 1, 0, 1 by 1/2, 1, 1/2
    seq, group = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 0])
    given = {"logp": f64(-1, -1, -1, -1), "ref_logp": f64(-2, -3, -1, -1), "reward": f64(1, 0, 1)}
    told = measures(contrastive(beta=0.5), {**given, "seq": seq, "group": group})
    assert told["gap"].tolist() == [0.5, 1.75, 1.25] and told["reward_gap"].tolist() == [0.5, 1.0, 0.5]
    assert gap(f64(-1), f64(-9), f64(1), torch.tensor([0]), torch.tensor([0]), 0.5).tolist() == [0.0]  # alone


def test_it_is_the_gradient_of_the_squared_difference_of_pairs():
    logp, ref, reward, seq = columns(3, (2, 3, 1, 4))
    group = torch.tensor([0, 0, 0, 1])
    given: dict[str, Any] = {"ref_logp": ref, "reward": reward, "seq": seq, "group": group}

    def squared(x: torch.Tensor) -> torch.Tensor:
        r = regularised_reward(reward, x, ref, seq, 0.3)[:3]
        pairs = [(r[i] - r[j]) ** 2 / 2 for i in range(3) for j in range(i)]
        return torch.stack(pairs).sum() / 2  # each answer has two partners

    ours = slope(lambda x: contrastive(logp=x, **given, beta=0.3), logp)
    assert torch.allclose(ours, slope(squared, logp) / 0.3)
    assert (ours[seq == 3] == 0).all()  # alone in its group


def optimum_error(baseline: Any, steps: int = 400) -> float:
    """KL(pi || pi*) after expected steps on a bandit of three arms whose pairs come from a skewed behaviour policy."""
    behaviour, reward, beta = f64(0.8, 0.15, 0.05), f64(0.2, 1.0, 0.5), 0.5
    ref = torch.log_softmax(f64(0.5, 0.0, -0.3), 0)
    best = torch.log_softmax(ref + reward / beta, 0)
    pairs = [(i, j) for i in range(3) for j in range(3)]
    arms, chance = torch.tensor(pairs).flatten(), torch.stack([behaviour[i] * behaviour[j] for i, j in pairs])
    seq, group = torch.arange(18), torch.arange(9).repeat_interleave(2)
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    for _ in range(steps):
        logp = torch.log_softmax(theta, 0)[arms]
        l = contrastive(
            logp=logp, ref_logp=ref[arms], reward=reward[arms], seq=seq, group=group, beta=beta, baseline=baseline
        )
        (gradient,) = torch.autograd.grad((chance[group] * l).sum(), theta)
        theta = (theta - 0.5 * gradient).detach().requires_grad_()
    logp = torch.log_softmax(theta.detach(), 0)
    return float((logp.exp() * (logp - best)).sum())


def test_samples_of_a_skewed_policy_lead_to_the_optimum_with_this_baseline_alone():
    assert optimum_error("contrast", 2000) < 1e-9
    assert optimum_error("value") > 1e-2
    assert optimum_error("none") > 1e-2


def test_values_without_a_meaning_are_refused():
    with pytest.raises(BadValue, match="beta must be above 0"):
        of("copg", beta=0.0)
    with pytest.raises(BadValue, match="baseline must be contrast, value or none"):
        contrastive(logp=f64(0), ref_logp=f64(0), reward=f64(1), seq=torch.tensor([0]), group=[0], baseline="mean")
