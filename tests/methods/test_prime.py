"""PRIME: process and outcome by hand, the reward model's loss, and the order of the two updates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.battery import groups_of, of, start
from support.by_hand import token_gradient
from support.episodes import single_turn_group

from selfteach.core.blocks import measures
from selfteach.credit.advantages import leave_one_out
from selfteach.learner.local import LocalLearner
from selfteach.learner.settings import LearnerSettings
from selfteach.loop.learn_batch import compose_batch, learn_batch
from selfteach.loop.method_on_task import needed
from selfteach.loop.state import RunState
from selfteach.loop.step_context import EpisodeLimits, StepContext
from selfteach.methods.prime import implicit_process, outcome_cross_entropy


def test_process_and_outcome_have_their_own_baselines():
    # beta 1/2. r of sibling 0: 1, 3 (mean 2); of sibling 1: 4; of sibling 2: 0, 0. Others' means: (4 + 0)/2 = 2, (2 +
    # 0)/2 = 1, (2 + 4)/2 = 3. To go: (1-2) + (3-2) = 0, 1;  4 - 1 = 3;  (0-3) + (0-3) = -6, -3.  Outcome 1, 0, 0: 1 - 0
    # = 1, 0 - 1/2, 0 - 1/2.
    given: dict[str, Any] = {"prm_logp": [2.0, 6.0, 8.0, 1.0, 1.0], "ref_logp": [0.0, 0.0, 0.0, 1.0, 1.0]}
    given |= {"seq": [0, 0, 1, 2, 2], "group": [0, 0, 0], "reward": [1.0, 0.0, 0.0], "beta": 0.5, "batch": [0] * 5}
    given["batch_norm"] = False
    assert implicit_process(**given)["adv"].values == pytest.approx([1, 2, 2.5, -6.5, -3.5])
    assert implicit_process(**given, process=0.0)["adv"].values == pytest.approx([1, 1, -0.5, -0.5, -0.5])
    assert implicit_process(**given, outcome=0.0, gamma=0.0)["adv"].values == pytest.approx([-1, 1, 3, -3, -3])
    alone = {**given, "group": [0, 1, 2]}
    assert (implicit_process(**alone)["adv"].values == 0).all()
    assert leave_one_out(np.array([3.0, 1.0, 7.0]), np.array([0, 0, 1])).tolist() == [2, -2, 0]


def test_process_rewards_are_scaled_by_the_largest_return_of_the_batch():
    # r: 1, -3 | 2 | 0.5, 0.5 (beta 1). Returns -2, -3 | 2 | 1, 0.5: the largest is |-3|, not the largest reward to the
    # end nor the largest sum. Divided by 3, 1/3, -1 (mean -1/3) and 2/3 in one group, 1/6, 1/6 alone in the other:
    # (1/3 - 2/3) + (-1 - 2/3) = -2, -5/3; 2/3 - -1/3 = 1; 0, 0.
    given: dict[str, Any] = {"prm_logp": [1.0, -3.0, 2.0, 0.5, 0.5], "ref_logp": [0.0] * 5, "beta": 1.0, "outcome": 0.0}
    given |= {"seq": [0, 0, 1, 2, 2], "group": [0, 0, 1], "reward": [0.0] * 3, "batch": [0] * 5, "batch_norm": True}
    got = implicit_process(**given)["adv"].values
    assert got == pytest.approx([-2, -5 / 3, 1, 0, 0], rel=1e-5)
    # so beta is without effect, where without the norm it is the weight of the process
    assert implicit_process(**given | {"beta": 0.01})["adv"].values == pytest.approx(got, rel=1e-3)
    assert implicit_process(**given | {"beta": 0.01, "batch_norm": False})["adv"].values[2] == pytest.approx(0.03)
    equal = given | {"prm_logp": [0.0] * 5}
    assert (implicit_process(**equal)["adv"].values == 0).all()  # a reward model that has not learned yet


def test_the_policy_gradient_is_of_the_whitened_sum():
    # Outcomes 1, 0 alone: A = 1, -1, whose std over n - 1 is sqrt(2). Log-ratios 0 and 2 a token: r = 0, 1 by the norm
    # whatever beta is, others' means 1, 0, so A = 1 + (0 - 1) and -1 + (1 - 0): nothing is left. w = 1/2.
    group, on_policy = [single_turn_group([(5,), (6,)], [1.0, 0.0])], [-1.0, -1.0]
    given = {"prm_logp": [-1.0, 1.0], "ref_logp": [-1.0, -1.0]}
    policy, prm = 0, 1  # the policy is updated first, with the rewards of the reward model as it was
    got = token_gradient(of("prime", process=0.0), group, on_policy, update=policy, **given)
    assert got == pytest.approx([-math.sqrt(0.5) / 2, math.sqrt(0.5) / 2])
    plain = of("prime", beta=0.5, batch_norm=False)
    assert token_gradient(plain, group, on_policy, update=policy, **given) == [0, 0]
    # The reward model's gradient is that of the sum: S = 0 and 1: beta (sigmoid(S) - R) over two answers.
    up, down = 0.5 * (0.5 - 1) / 2, 0.5 / (1 + math.exp(-1)) / 2
    got = token_gradient(plain, group, given["prm_logp"], name="prm_logp", update=prm, **given)
    assert got == pytest.approx([up, down])


def test_cross_entropy_of_a_log_ratio_by_hand():
    # beta 1/2: S = 1/2 (1 + 3) = 2 and -1/2. -log sigmoid(2) = log(1 + e^-2); -log(1 - sigmoid(-1/2)) = log(1 +
    # e^-1/2). d l / d logp = beta (sigmoid(S) - R).
    logp = torch.tensor([1.0, 3.0, -1.0], dtype=torch.float64, requires_grad=True)
    l = outcome_cross_entropy(
        prm_logp=logp, ref_logp=torch.zeros(3), reward=torch.tensor([1.0, 0.0]), seq=torch.tensor([0, 0, 1]), beta=0.5
    )
    assert l.tolist() == pytest.approx([math.log1p(math.exp(-2)), math.log1p(math.exp(-0.5))])
    l.sum().backward()
    up, down = 0.5 * (1 / (1 + math.exp(-2)) - 1), 0.5 / (1 + math.exp(0.5))
    assert logp.grad is not None and logp.grad.tolist() == pytest.approx([up, up, down])


@pytest.mark.parametrize("double_forward", [False, True])
def test_the_reward_model_scores_before_it_is_updated_unless_it_forwards_twice(double_forward):
    method = needed(of("prime", double_forward=double_forward))
    learner = LocalLearner(method.weights, method.models, start(), 0, LearnerSettings())
    context = StepContext(None, None, tuple(method.models), {}, None, {}, limits=EpisodeLimits())  # type: ignore[arg-type]
    groups = groups_of()
    context.trees.update({e.id: e.tree for g in groups for e in g.episodes})
    state = RunState()

    def step() -> tuple[np.ndarray, np.ndarray, Any]:
        """The process rewards that the policy was paid in this step, and those of the reward model after it."""
        batch = compose_batch(groups, method.stage, learner, context, state).batch
        learn_batch(batch, method.stage, learner, state, lr=1e-3)
        paid = batch.get("prm_logp") - batch.get("ref_logp")
        del batch.columns["prm_logp"]
        learner.forward(batch, ["prm_logp"])
        return paid, batch.get("prm_logp") - batch.get("ref_logp"), batch

    paid, new, batch = step()
    assert np.abs(new).max() > 1e-4
    if double_forward:
        assert np.allclose(new, paid, atol=1e-12)
    else:
        assert (paid == 0).all()  # the reward model as it began is the reference
        paid, newer, batch = step()
        assert np.allclose(paid, new, atol=1e-12) and np.abs(newer - new).max() > 1e-4
        new = newer
    right, seq = batch.get("reward", "seq"), batch.get("seq")
    assert np.corrcoef(np.bincount(seq, weights=new), right)[0, 1] > 0.3  # implicit rewards correlate with the outcome


def test_beta_is_a_twentieth_and_process_and_outcome_count_alike_unless_told_otherwise():
    # S = 0.05 * (10 + 30) = 2: log(1 + e^-2)
    l = outcome_cross_entropy(
        prm_logp=torch.tensor([10.0, 30.0]), ref_logp=torch.zeros(2), reward=torch.ones(1), seq=torch.tensor([0, 0])
    )
    assert l.tolist() == pytest.approx([math.log1p(math.exp(-2))])
    # r = 0.5, 1.5 (mean 1) and 2: to go (0.5 - 2) + (1.5 - 2) = -2, -1/2; 2 - 1 = 1. Outcome 1, 0: 1 and -1.
    given: dict[str, Any] = {
        "prm_logp": [10.0, 30.0, 40.0],
        "ref_logp": [0.0] * 3,
        "seq": [0, 0, 1],
        "group": [0, 0],
        "batch": [0] * 3,
    }
    got = implicit_process(**given, reward=[1.0, 0.0], batch_norm=False)["adv"].values
    assert got == pytest.approx([-1.0, 0.5, 0.0])


def test_log_odds_of_right_and_of_wrong_answers_are_logged():
    # beta 1/2: S = (1 + 2)/2 and 1/2 (3 - 1) of two answers, the first of which is right
    given = {"prm_logp": torch.tensor([1.0, 2.0, 3.0]), "ref_logp": torch.tensor([0.0, 0.0, 1.0])}
    given |= {"seq": torch.tensor([0, 0, 1]), "reward": torch.tensor([1.0, 0.0])}
    got = {name: values.tolist() for name, values in measures(outcome_cross_entropy(beta=0.5), given).items()}
    assert got == {"odds_right": [1.5], "odds_wrong": [1.0]}
