"""OPRL: pairs of episodes, implicit step rewards by hand, the reward model's gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.battery import Study, groups_of, of
from support.by_hand import token_gradient
from support.episodes import single_turn_group

from selfteach.methods.oprl import add_implicit_steps, episode_pairs


def test_every_better_episode_is_preferred_to_every_worse_one_of_its_group():
    first = single_turn_group([(5,), (6,), (7,)], [1.0, 0.0, 0.0], key="a")
    second = single_turn_group([(5,), (6,)], [1.0, 1.0], key="b")
    examples = episode_pairs(groups=[first, second])
    assert [e.preferred_over for e in examples] == [(1, 2), (), (), (), ()]


def test_a_turn_that_the_model_makes_likelier_gets_more_credit():
    # Episode 0 has two turns, of log-ratios 1 + 1 and 0, episode 1 one of -2: r = 0.1, 0, -0.1 with the mean 0 and the
    # standard deviation 0.1, so 1, 0, -1; on top of A = 0.7 and -0.7.
    turns = {"step": np.array([0, 0, 1, 2]), "seq": np.array([0, 0, 1]), "group": np.zeros(3, np.int64)}
    given = {"prm_logp": [0.0, 0.0, -1.0, -3.0], "old_logp": [-1.0] * 4, **turns, "eps": 0.0}
    adv = add_implicit_steps(adv=[0.7, -0.7], **given)["adv"].values
    assert adv == pytest.approx([1.7, 1.7, 0.7, -1.7])
    assert add_implicit_steps(adv=[0.7, -0.7], **given, alpha=0.5)["adv"].values == pytest.approx([1.2, 1.2, 0.7, -1.2])


def test_turns_are_compared_within_their_group():
    turns = {"step": np.arange(4), "seq": np.arange(4), "group": np.array([0, 0, 1, 1])}
    given = {"prm_logp": [1.0, 0.0, 9.0, 9.0], "old_logp": [0.0] * 4, **turns, "eps": 0.0}
    assert add_implicit_steps(adv=[0.0] * 4, **given)["adv"].values == pytest.approx(
        [0.70711, -0.70711, 0, 0], rel=1e-4
    )


def test_the_gradient_of_the_reward_model_by_hand():
    # One pair with the margin 0.05 * (0.2 - 0): d loss / d h(better) = -0.05 sigmoid(-0.01), and the opposite.
    group = single_turn_group([(5, 6), (7,)], [1.0, 0.0])
    got = token_gradient(of("oprl"), [group], [-0.9, -0.9, -1.0], name="logp", update=0)
    pull = 0.05 / (1 + math.exp(0.01))
    assert got == pytest.approx([-pull, -pull, pull])


def test_without_step_advantages_the_policy_learns_as_in_grpo():
    none, grpo = (Study(m, groups_of()) for m in (of("oprl", alpha=0.0), of("grpo")))
    assert all(torch.equal(none.gradient[n], g) for n, g in grpo.gradient.items())
    other = Study(of("oprl"), groups_of())
    assert not all(torch.equal(other.gradient[n], g) for n, g in grpo.gradient.items())
