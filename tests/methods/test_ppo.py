"""PPO by hand: GAE, whitening, the clip, and the critic's squared error, not halved."""

from __future__ import annotations

import math

import pytest
import torch
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import single_turn_group

from selfteach.core.blocks import measures
from selfteach.methods.ppo import critic_error

# One answer of two tokens with the reward 1; V = 1/2, 1/4.
GROUP = [single_turn_group([(5, 6)], [1.0])]
VALUE = [0.5, 0.25]


def test_the_policy_follows_whitened_advantages():
    # A = (1 - 1/2, 1 - 1/4) = (1/2, 3/4) at lam = 1; mean 5/8, std sqrt(2) / 8: -+1/sqrt(2). w = 1/2.
    a = math.sqrt(0.5) / 2
    assert token_gradient(of("ppo"), GROUP, [-1.0, -1.0], critic_value=VALUE) == pytest.approx([a, -a], rel=1e-6)
    beyond = [math.log(0.7) - 1, math.log(1.3) - 1]
    assert token_gradient(of("ppo"), GROUP, beyond, critic_value=VALUE) == [0, 0]


def test_lam_and_gamma_are_those_of_gae():
    # Whitening hides the size of two advantages, so they are read off the critic's gradient, 2 (V - R) w = -A.
    # lam 0: the one-step errors 1/4 - 1/2 and 1 - 1/4. gamma 1/2, lam 1: R_0 = 1/2, R_1 = 1.
    given = {"name": "critic_value", "update": 0}
    got = token_gradient(of("ppo", lam=0.0), GROUP, VALUE, **given, critic_value=VALUE)
    assert got == pytest.approx([0.25, -0.75])
    assert token_gradient(of("ppo", gamma=0.5), GROUP, VALUE, **given, critic_value=VALUE) == pytest.approx(
        [0.0, -0.75]
    )


def test_the_critics_loss_is_not_halved():
    # R = 1, 1: d (V - R)^2 / dV = 2 (V - R) = -1, -3/2, over two tokens
    got = token_gradient(of("ppo"), GROUP, VALUE, name="critic_value", update=0, critic_value=VALUE)
    assert got == pytest.approx([-0.5, -0.75])
    critic, policy = of("ppo", critic_lr=0.5, critic_epochs=3, epochs=2).stage.updates
    assert (critic.params, critic.lr, policy.params, policy.lr) == (("critic",), 0.5, ("policy",), None)
    assert (critic.epochs, policy.epochs) == (3, 2)


def test_a_penalty_on_every_token_is_part_of_its_reward():
    # beta 1/10, log-ratios of 1 and 2 a token: r = -0.1, 1 - 0.2. R at lam 1: 0.7, 0.8. 2 (V - R) / 2 of the critic.
    given = {"name": "critic_value", "update": 0, "critic_value": VALUE, "ref_logp": [-2.0, -3.0]}
    assert token_gradient(of("ppo", beta=0.1), GROUP, VALUE, **given) == pytest.approx([0.5 - 0.7, 0.25 - 0.8])


def test_values_of_right_and_of_wrong_answers_are_logged():
    given = {"critic_value": torch.tensor([0.5, 0.25, 0.75]), "returns": torch.tensor([1.0, 0.0, 1.0])}
    got = {name: values.tolist() for name, values in measures(critic_error(), given).items()}
    assert got == {"value_right": [0.5, 0.75], "value_wrong": [0.25]}
