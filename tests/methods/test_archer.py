"""ArCHer: temporal differences of turns and their advantages by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from selfteach.methods.archer import turn_advantage, turn_td


def test_a_turn_is_worth_what_comes_after_it():
    # Episode 0: turns of two tokens and of one, return 1; episode 1: one turn, return 0. gamma 1/2, Vbar of the second
    # turn 0.8: Q targets 0.4, 1, 0; V targets are Qbar after each turn: 0.6, 0.9, 0.1.
    # Q = 0.5, 0.5, 0.5: 0.01, 0.25, 0.25; V = 0.5, 1, 0: 0.01, 0.01, 0.01. Means: (0.02 + 0.26) / 2, 0.26.
    got = turn_td(
        critic_scalar_after=torch.tensor([9.0, 0.5, 0.5, 0.5]),
        critic_value=torch.tensor([0.5, 9.0, 1.0, 0.0]),
        target_scalar_after=torch.tensor([9.0, 0.6, 0.9, 0.1]),
        target_value=torch.tensor([9.0, 9.0, 0.8, 9.0]),
        reward=torch.tensor([1.0, 0.0]),
        step=torch.tensor([0, 0, 1, 2]),
        seq=torch.tensor([0, 0, 0, 1]),
        gamma=0.5,
    )
    assert got.tolist() == pytest.approx([0.14, 0.26])


def test_no_gradient_goes_into_targets():
    heads = {n: torch.ones(2, requires_grad=True) for n in ("target_scalar_after", "target_value")}
    own = {n: torch.zeros(2, requires_grad=True) for n in ("critic_scalar_after", "critic_value")}
    index = {"step": torch.tensor([0, 1]), "seq": torch.tensor([0, 0])}
    turn_td(**own, **heads, reward=torch.ones(1), **index).sum().backward()
    assert all(h.grad is None for h in heads.values()) and all(h.grad is not None for h in own.values())


def test_the_advantage_is_of_the_lower_of_two_critics():
    # Q = min(1, 0.8), min(0.2, 0.4) after the turns; V = min(0.5, 0.6), min(0.3, 0.1) before them: 0.3 and 0.1.
    adv = turn_advantage(
        critic_scalar_after=[9.0, 1.0, 0.2],
        critic2_scalar_after=[9.0, 0.8, 0.4],
        critic_value=[0.5, 9.0, 0.3],
        critic2_value=[0.6, 9.0, 0.1],
        step=np.array([0, 0, 1]),
    )["adv"].values
    assert adv == pytest.approx([0.3, 0.3, 0.1])
