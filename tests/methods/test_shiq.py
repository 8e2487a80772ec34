"""ShiQ: residuals by hand and at the exact soft optimum of small trees."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import single_turn_group
from support.tensors import f64

from selfteach.core import BadValue
from selfteach.core.blocks import measures
from selfteach.methods.shiq import soft_bellman, step_rewards, terminal_reward


class Bellman:
    """All paths of a random tree of tokens with a reward at each, as rows of sequences; and the soft-optimal logits."""

    def __init__(self, seed: int, beta: float, actions: int = 3, depth: int = 3):
        draw = np.random.default_rng(seed)
        self.beta = beta
        states = [s for d in range(depth) for s in itertools.product(range(actions), repeat=d)]
        self.number = {s: i for i, s in enumerate(states)}
        self.reward = torch.tensor(draw.normal(size=(len(states), actions)))
        self.ref = torch.tensor(draw.normal(size=(len(states), actions)))
        value = dict.fromkeys(itertools.product(range(actions), repeat=depth), 0.0)
        q = torch.zeros_like(self.ref)
        for s in reversed(states):
            i = self.number[s]
            q[i] = self.reward[i] + torch.tensor([value[*s, a] for a in range(actions)], dtype=torch.float64)
            value[s] = float(beta * torch.logsumexp(self.ref[i].log_softmax(0) + q[i] / beta, 0))
        self.best = q / beta + self.ref.log_softmax(1) + self.ref.logsumexp(1, keepdim=True)
        paths = list(itertools.product(range(actions), repeat=depth))
        self.at = torch.tensor([self.number[p[:k]] for p in paths for k in range(depth)])
        self.token = torch.tensor([p[k] for p in paths for k in range(depth)])
        self.seq = torch.tensor([n for n in range(len(paths)) for _ in range(depth)])
        self.paths = paths

    def loss(self, logits: torch.Tensor, **hyper_parameters: Any) -> torch.Tensor:
        pick = lambda table: table.log_softmax(1)[self.at, self.token]  # noqa: E731
        partition = lambda table: table.logsumexp(1)[self.at]  # noqa: E731
        given = {
            "raw_logp": pick(logits),
            "ref_raw_logp": pick(self.ref),
            "lse": partition(logits),
            "ref_lse": partition(self.ref),
        }
        return soft_bellman(
            **given, token_reward=self.reward[self.at, self.token], seq=self.seq, beta=self.beta, **hyper_parameters
        )

    def objective(self, logits: torch.Tensor) -> float:
        """E[r] - beta KL(pi || ref) of the softmax policy, by enumeration."""
        lp, ref = logits.log_softmax(1)[self.at, self.token], self.ref.log_softmax(1)[self.at, self.token]
        depth = len(self.paths[0])
        gain = (self.reward[self.at, self.token] - self.beta * (lp - ref)).reshape(-1, depth).sum(1)
        return float((lp.reshape(-1, depth).sum(1).exp() * gain).sum())


@pytest.mark.parametrize("seed", range(4))
def test_every_residual_is_zero_at_the_soft_optimum_and_nowhere_else(seed):
    world = Bellman(seed, beta=0.3)
    for steps in ("all", "one"):
        assert world.loss(world.best, steps=steps).abs().max() < 1e-20
        assert world.loss(world.best + 0.01 * torch.eye(3)[0], steps=steps).max() > 1e-8
        assert world.loss(world.best + 0.01, steps=steps).max() > 1e-8, (
            "the sum of the logits is the value, and must fit too"
        )
        assert world.loss(world.best, steps=steps, shift=False).max() > 1e-3
        assert world.loss(world.ref, steps=steps).max() > 1e-3
    rng = np.random.default_rng(seed)
    assert all(
        world.objective(world.best)
        > world.objective(world.best + 0.1 * torch.tensor(rng.normal(size=world.best.shape)))
        for _ in range(20)
    )


def test_the_gradient_of_the_method_by_hand():
    # beta 1/2; the numbers of the next test, two tokens of one answer, reward 1: residuals 0.4 and 0.3, w = 1/2.
    # Each falls by beta with its own logp and those after it: 2 w residual (-1/2): first 0.4 alone, last 0.4 + 0.3.
    group = [single_turn_group([(5, 6)], [1.0])]
    given = {"ref_raw_logp": f64(-1.2, -1.4), "lse": f64(2.6, 3), "ref_lse": f64(2, 2)}
    got = token_gradient(of("shiq", beta=0.5), group, [-1.0, -1.0], name="raw_logp", **given)
    assert got == pytest.approx([-0.2, -0.35])
    # The value has the slope beta in its own residual alone.
    given = {"raw_logp": f64(-1, -1), "ref_raw_logp": f64(-1.2, -1.4), "ref_lse": f64(2, 2)}
    assert token_gradient(of("shiq", beta=0.5), group, [2.6, 3.0], name="lse", **given) == pytest.approx([-0.2, -0.15])


def test_soft_bellman_by_hand():
    # beta 1/2. d = (0.2, 0.4), V = (0.5 * 0.6, 0.5 * 1) = (0.3, 0.5), rewards (0, 1).
    # one: 0 - 0.1 + 0.5 - 0.3 = 0.1;  1 - 0.2 + 0 - 0.5 = 0.3.   all: 0.1 + 0.3, 0.3
    given = {"raw_logp": f64(-1, -1), "ref_raw_logp": f64(-1.2, -1.4), "lse": f64(2.6, 3), "ref_lse": f64(2, 2)}
    given |= {"token_reward": f64(0, 1), "seq": torch.tensor([0, 0]), "beta": 0.5}
    assert soft_bellman(**given, steps="one").tolist() == pytest.approx([0.01, 0.09])
    assert soft_bellman(**given).tolist() == pytest.approx([0.16, 0.09])
    with pytest.raises(BadValue, match="steps must be all or one"):
        soft_bellman(**given, steps="two")


@pytest.mark.parametrize("seed", [0, 1])
def test_multi_step_residuals_reach_the_optimum_off_policy_sooner_than_one_step_ones(seed):
    """Updates until the objective is within 2 % of its optimum; eight tokens deep, with a reward at the end alone.

    Every path counts once, so that nothing is sampled from the policy. (At beta 0.1 and a smaller learning rate the
    order is reversed: then convergence at the end takes long, not the propagation.)
    """
    needed = {}
    for steps in ("all", "one"):
        world = Bellman(seed, beta=0.3, actions=2, depth=8)
        late = torch.zeros_like(world.reward)
        late[2**7 - 1 :] = (world.reward[2**7 - 1 :] > 1).double()  # the states of depth 7 are the last
        world.reward = late
        logits = world.ref.clone().requires_grad_()
        best = float(world.beta * torch.logsumexp(torch.stack([_path_value(world, p) for p in world.paths]), 0))
        optimiser, needed[steps] = torch.optim.Adam([logits], lr=0.1), 0
        while best - world.objective(logits.detach()) >= 0.02 * best and needed[steps] < 200:
            optimiser.zero_grad()
            world.loss(logits, steps=steps).mean().backward()
            optimiser.step()
            needed[steps] += 1
    assert 0 < needed["all"] < 0.8 * needed["one"] < 160


def _path_value(world: Bellman, path: tuple[int, ...]) -> torch.Tensor:
    """log ref(path) + r(path) / beta, whose logsumexp is the optimal value over beta."""
    at = [world.number[path[:k]] for k in range(len(path))]
    return sum(world.ref.log_softmax(1)[i, a] + world.reward[i, a] / world.beta for i, a in zip(at, path, strict=True))  # type: ignore[return-value]


def test_the_outcome_is_the_reward_of_the_last_token():
    assert terminal_reward(reward=[2.0, 3.0], seq=[0, 0, 1])["token_reward"].values.tolist() == [0, 2, 3]


def test_the_reward_of_a_turn_is_that_of_its_last_token():
    got = step_rewards(reward=[1.0, np.nan, 3.0], step=[0, 0, 1, 2, 2])["token_reward"].values
    assert got.tolist() == [0, 1, 0, 0, 3]


def test_beta_is_a_tenth_unless_told_otherwise():
    # d = 1, 2; V = (lse - ref) / 10 = 0.3, 0.1. To go: 1 - 0.1 - 0.2 - 0.3 = 0.4; 1 - 0.2 - 0.1 = 0.7. One step:
    # -0.1 + 0.1 - 0.3 = -0.3; 1 - 0.2 + 0 - 0.1 = 0.7
    given = {
        "raw_logp": f64(-1, -1),
        "ref_raw_logp": f64(-2, -3),
        "lse": f64(4, 2),
        "ref_lse": f64(1, 1),
        "token_reward": f64(0, 1),
        "seq": torch.tensor([0, 0]),
    }
    assert soft_bellman(**given).tolist() == pytest.approx([0.16, 0.49])
    assert soft_bellman(**given, steps="one").tolist() == pytest.approx([0.09, 0.49])
    # without the shift V = 0.4, 0.2
    assert soft_bellman(**given, shift=False).tolist() == pytest.approx([0.09, 0.36])


def test_values_in_the_first_half_of_right_and_of_wrong_answers_are_told():
    # three tokens of a right answer, of which the first has more to come than before it; two of a wrong one
    given = {
        "lse": f64(3, 9, 9, 1, 9),
        "ref_lse": f64(1, 0, 0, 2, 0),
        "token_reward": f64(0, 0, 1, 0, 0),
        "seq": torch.tensor([0, 0, 0, 1, 1]),
        "raw_logp": f64(-1, -1, -1, -1, -1),
        "ref_raw_logp": f64(-1, -1, -1, -1, -1),
    }
    told = measures(soft_bellman(beta=0.5), given)
    assert (told["value_right"].tolist(), told["value_wrong"].tolist()) == ([1.0], [-0.5])
