"""SPA-RL: the estimator's loss and the rewards of turns by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.battery import of

from selfteach.core import History
from selfteach.methods.spa import attributed, decomposed_return, with_kl

NAN = float("nan")


def test_the_numbers_of_an_episode_are_to_sum_to_its_return():
    # Two turns, 0.5 after the first and 0.25 after the second: (1 - 0.75)^2; another episode of one: (0 - 0.5)^2.
    given = {"step": torch.tensor([0, 0, 1, 2]), "seq": torch.tensor([0, 0, 0, 1]), "reward": torch.tensor([1.0, 0.0])}
    c = torch.tensor([9.0, 0.5, 0.25, 0.5], requires_grad=True)
    loss = decomposed_return(estimator_scalar_after=c, **given)
    assert loss.tolist() == [0.0625, 0.25]
    loss.sum().backward()
    assert c.grad is not None and c.grad.tolist() == [0.0, -0.5, -0.5, 1.0]  # 2 (sum - R), nothing inside a turn


def test_the_estimator_learns_first_and_the_policy_after_it():
    stage = of("spa", estimator_steps=2).stage
    assert [u.params for u in stage.updates] == [("estimator",), ("critic",), ("policy",)]
    now = [[bool(u.when(history=History(step=step))) for u in stage.updates if u.when] for step in (1, 2)]
    assert now == [[True, False, False], [False, True, True]]
    assert of("spa", online=True).stage.updates[0].when is None


def test_a_turn_is_paid_at_its_end_for_its_share_and_for_being_possible():
    turns = {"step": np.array([0, 0, 1, 2]), "executable": [1.0, 0.0, NAN]}
    c = [9.0, 0.2, 0.4, -0.1]
    assert attributed(estimator_scalar_after=c, **turns)["token_reward"].values == pytest.approx([0, 0.7, 0.4, -0.1])
    other = attributed(estimator_scalar_after=c, **turns, alpha=0.5, grounding=0.0)["token_reward"].values
    assert other == pytest.approx([0, 0.1, 0.2, -0.05])


def test_the_penalty_is_per_token():
    got = with_kl(token_reward=[0.0, 1.0], old_logp=[-1.0, -1.0], ref_logp=[-2.0, -1.0], beta=0.5)
    assert got["token_reward"].values.tolist() == [-0.5, 1.0]
