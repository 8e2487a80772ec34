"""The objective family by hand: ROVER, NFT, ShiQ, A*-PO, REC with OPMD and AsymRE, M2PO, BAPO; their theorems on small trees, their reductions."""

from __future__ import annotations

import doctest
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import said_group
from hypothesis import given, settings
from hypothesis import strategies as st
from test_battery import Study, groups_of, same_gradient, with_weigh
from test_loop import advance, bandit, equal, loop_of, weights_of
from test_objective import columns, f64, slope

from selfteach.core import BadValue, Method, Term, registry
from selfteach.credit import baseline, center, keep_balanced, lowered, norm, paid_at_end, paid_at_steps, remember_rewards, soft_advantage, values
from selfteach.credit.values import soft_value
from selfteach.objective import (
    advantage_regression,
    balanced_clip,
    bellman,
    bounded_moment,
    bounds,
    clipped_importance,
    clipped_ratio,
    implicit_negative,
    likelihood,
    policy_gradient,
    ranged_reinforce,
    regression,
    soft_bellman,
    token_mean,
    uniform_bellman,
    weighted_nll,
)
from selfteach.objective.bounds import balanced_bounds, cut_of_moment

quick = settings(max_examples=40, deadline=None, derandomize=True)


def of(name: str, **knobs: Any) -> Method:
    return registry.methods.get(name)(**knobs)


@pytest.mark.parametrize("module", [baseline, values, bellman, bounds, likelihood, regression])
def test_the_examples_in_the_docstrings_are_true(module):
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


# ---- ROVER


def test_uniform_bellman_by_hand():
    # rho 2. Sequence 0: Q = 2 (0.3, -0.1) = (0.6, -0.2), V = 2 (9, 0.4) = (18, 0.8); targets 0.5 + 0.8 and 0.5, whose gaps are -0.7
    # and -0.7. Sequence 1, one token: Q = 0.4 against -1.
    lp, seq = f64(-1.0, -2.0, -3.0), torch.tensor([0, 0, 1])
    rest = {"prox_logp": lp - f64(0.3, -0.1, 0.2), "mean_logp": f64(9.0, 0.4, 7.0), "prox_mean_logp": f64(0, 0, 0)}
    rest |= {"adv": f64(0.5, 0.5, -1.0), "seq": seq, "rho": 2.0}
    assert uniform_bellman(logp=lp, **rest).tolist() == pytest.approx([0.49, 0.49, 1.96])
    assert uniform_bellman(logp=lp, **rest, ahead=0.0)[0].item() == pytest.approx(0.01)
    # the target is a constant: only the token's own logp is moved, by 2 rho (Q - target)
    assert slope(lambda x: uniform_bellman(logp=x, **rest), lp).tolist() == pytest.approx([-2.8, -2.8, 5.6])
    mean, live = f64(9.0, 0.4, 7.0, grad=True), lp.clone().requires_grad_()
    uniform_bellman(logp=live, **{**rest, "mean_logp": mean}).sum().backward()
    assert mean.grad is None


def tree(draw: np.random.Generator, most: int = 3, depth: int = 4) -> dict[tuple[int, ...], int]:
    """Inner nodes of a random tree: path -> number of its actions; what is not in it is a leaf."""
    out: dict[tuple[int, ...], int] = {}
    front: list[tuple[int, ...]] = [()]
    while front:
        node = front.pop()
        if len(node) < depth and (not node or draw.random() < 0.75):
            out[node] = int(draw.integers(2, most + 1))
            front += [(*node, a) for a in range(out[node])]
    return out


@pytest.mark.parametrize("seed", range(10))
def test_greedy_on_the_value_of_acting_at_random_is_optimal(seed):
    """The theorem, with the values learned by the term itself: a free Q per state and action, every path a sequence, paid at its end."""
    draw = np.random.default_rng(seed)
    inner = tree(draw)
    number = {(s, a): i for i, (s, a) in enumerate((s, a) for s in inner for a in range(inner[s]))}
    leaves = [(*s, a) for s in inner for a in range(inner[s]) if (*s, a) not in inner]
    wins = {leaf: float(draw.random() < 0.15) for leaf in leaves}
    wins[leaves[int(draw.integers(len(leaves)))]] = 1.0
    rows = [(leaf, k, number[leaf[:k], leaf[k]]) for leaf in leaves for k in range(len(leaf))]
    seq = torch.tensor([leaves.index(leaf) for leaf, _, _ in rows])
    at = torch.tensor([i for _, _, i in rows])
    paid = torch.tensor([wins[leaf] * (k == len(leaf) - 1) for leaf, k, _ in rows], dtype=torch.float64)
    q = torch.zeros(len(number), dtype=torch.float64, requires_grad=True)
    visits = torch.bincount(at).double()
    for _ in range(6):  # each row's target is a constant, so half the gradient over the visits is an exact backup; the tree is 4 deep
        mean = torch.stack([torch.stack([q[number[leaf[:k], a]] for a in range(inner[leaf[:k]])]).mean() for leaf, k, _ in rows])
        zero = torch.zeros_like(mean)
        loss = uniform_bellman(logp=q[at], prox_logp=zero, mean_logp=mean, prox_mean_logp=zero, adv=paid, seq=seq).sum()
        (grad,) = torch.autograd.grad(loss, q)
        with torch.no_grad():
            q -= grad / (2 * visits)

    def random_value(path: tuple[int, ...]) -> float:
        return wins[path] if path in wins else float(np.mean([random_value((*path, a)) for a in range(inner[path])]))

    learned = q.detach().numpy()
    for (s, a), i in number.items():
        assert learned[i] == pytest.approx(random_value((*s, a)), abs=1e-12)
        assert (learned[i] > 0) == any(wins[leaf] for leaf in leaves if leaf[: len(s) + 1] == (*s, a)), "above 0 where a success lies below"
    path: tuple[int, ...] = ()
    while path in inner:
        path = (*path, int(np.argmax([learned[number[path, a]] for a in range(inner[path])])))
    assert wins[path] == 1.0


def test_rover_begins_as_the_policy_gradient():
    plain = Term(policy_gradient(), weigh=token_mean(), coef=2 * 0.7)
    update = replace(of("rover").stage.updates[0], terms=(plain,))
    same_gradient(Study(of("rover", rho=0.7), groups_of()), Study(of("rover").but(updates=(update,)), groups_of()), 1e-12)


# ---- NFT


def test_implicit_negative_by_hand():
    # q = 1/4, R = 1/2. Right: -log(1/2). Wrong: (1 - 1/8) / (3/4) = 7/6. center: times 3/4; norm: times sqrt 3.
    lp, old = f64(math.log(0.5), math.log(0.5)), f64(0, 0)
    given = {"logp": lp, "old_logp": old, "reward": f64(1, 0), "rate": f64(0.25, 0.25)}
    bare = [math.log(2), -math.log(7 / 6)]
    assert implicit_negative(**given, scale="none").tolist() == pytest.approx(bare)
    assert implicit_negative(**given, scale="center").tolist() == pytest.approx([0.75 * x for x in bare])
    assert implicit_negative(**given, scale="norm").tolist() == pytest.approx([math.sqrt(3) * x for x in bare])
    assert implicit_negative(**given, scale="none", neg_weight=0.5).tolist() == pytest.approx([bare[0], bare[1] / 2])
    with pytest.raises(BadValue, match="scale must be one of"):
        implicit_negative(**given, scale="grpo")


def test_the_value_is_held_and_the_gradient_passes():
    # R = 2, q = 1/4: (1 - 1/2) / (3/4) = 2/3 is held at 1, so the value is 0; its slope is q R / (1 - q) = 2/3 over 1, not over 2/3
    wrong = {"old_logp": f64(0), "reward": f64(0), "rate": f64(0.25), "scale": "none"}
    assert implicit_negative(logp=f64(math.log(2)), **wrong).item() == 0.0
    assert slope(lambda x: implicit_negative(logp=x, **wrong), f64(math.log(2))).item() == pytest.approx(2 / 3)
    assert slope(lambda x: implicit_negative(logp=x, **wrong, floor=0.0), f64(math.log(2))).item() == pytest.approx(1.0)
    # R = 8: the implied policy would be below 0, which without a floor has no logarithm
    assert math.isfinite(slope(lambda x: implicit_negative(logp=x, **wrong), f64(math.log(8))).item())
    assert torch.isfinite(implicit_negative(logp=f64(900), old_logp=f64(0), reward=f64(1), rate=f64(0.25))).all()


@pytest.mark.parametrize("seed", range(5))
def test_on_policy_nft_is_grpo(seed):
    draw = np.random.default_rng(seed)
    reward, group = (draw.random(32) < 0.4).astype(float), np.repeat(np.arange(4), 8)
    reward[::8], reward[1::8] = 1.0, 0.0  # each group holds both
    rate = np.repeat(reward.reshape(4, 8).mean(1), 8)
    old = -torch.tensor(draw.exponential(size=32))
    got = slope(lambda x: implicit_negative(logp=x, old_logp=old, reward=torch.tensor(reward), rate=torch.tensor(rate), scale="norm"), old)
    for ddof, exact in ((0, True), (1, False)):
        adv = torch.tensor(norm(reward=reward, group=group, ddof=ddof, eps=0.0)["adv"].values)
        grpo = slope(lambda x, a=adv: clipped_ratio(logp=x, old_logp=old, adv=a), old)
        assert torch.nn.functional.cosine_similarity(got, grpo, 0) > 0.999
        assert torch.allclose(got, grpo, atol=1e-12) == exact
    centred = torch.tensor(center(reward=reward, group=group)["adv"].values)
    mild = slope(lambda x: implicit_negative(logp=x, old_logp=old, reward=torch.tensor(reward), rate=torch.tensor(rate)), old)
    assert torch.allclose(mild, -centred, atol=1e-12)


def test_nft_without_its_negatives_is_rejection_fine_tuning():
    rft = of("nft", neg_weight=0.0, scale="none")
    (update,) = rft.stage.updates
    plain = replace(update, terms=(replace(update.terms[0], fn=weighted_nll().reading(adv="reward")),))
    same_gradient(Study(rft, groups_of()), Study(rft.but(updates=(plain,)), groups_of()), 1e-12)
    with pytest.raises(AssertionError):
        same_gradient(Study(of("nft", scale="none"), groups_of()), Study(rft, groups_of()))


# ---- ShiQ


class Bellman:
    """All paths of a random tree of tokens, with a reward at each token, as rows of sequences; and its soft-optimal logits."""

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

    def loss(self, logits: torch.Tensor, **knobs: Any) -> torch.Tensor:
        pick = lambda table: table.log_softmax(1)[self.at, self.token]  # noqa: E731
        partition = lambda table: table.logsumexp(1)[self.at]  # noqa: E731
        given = {"raw_logp": pick(logits), "ref_raw_logp": pick(self.ref), "lse": partition(logits), "ref_lse": partition(self.ref)}
        return soft_bellman(**given, token_reward=self.reward[self.at, self.token], seq=self.seq, beta=self.beta, **knobs)

    def worth(self, logits: torch.Tensor) -> float:
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
        assert world.loss(world.best + 0.01, steps=steps).max() > 1e-8, "the sum of the logits is the value, and must fit too"
        assert world.loss(world.best, steps=steps, shift=False).max() > 1e-3
        assert world.loss(world.ref, steps=steps).max() > 1e-3
    rng = np.random.default_rng(seed)
    assert all(world.worth(world.best) > world.worth(world.best + 0.1 * torch.tensor(rng.normal(size=world.best.shape))) for _ in range(20))


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
def test_sums_over_all_steps_find_the_optimum_from_anybodys_paths_sooner_than_single_ones(seed):
    """Eight tokens deep, every path once, so that nothing is drawn from the policy, and a reward at the end alone. Updates until the worth
    is within 2 % of the best. (At beta 0.1 and a smaller rate the two change places: then the end is what takes long, not the way back.)"""
    needed = {}
    for steps in ("all", "one"):
        world = Bellman(seed, beta=0.3, actions=2, depth=8)
        late = torch.zeros_like(world.reward)
        late[2**7 - 1 :] = (world.reward[2**7 - 1 :] > 1).double()  # the states of depth 7 are the last
        world.reward = late
        logits = world.ref.clone().requires_grad_()
        best = float(world.beta * torch.logsumexp(torch.stack([_path_value(world, p) for p in world.paths]), 0))
        optimiser, needed[steps] = torch.optim.Adam([logits], lr=0.1), 0
        while best - world.worth(logits.detach()) >= 0.02 * best and needed[steps] < 200:
            optimiser.zero_grad()
            world.loss(logits, steps=steps).mean().backward()
            optimiser.step()
            needed[steps] += 1
    assert 0 < needed["all"] < 0.8 * needed["one"] < 160


def _path_value(world: Bellman, path: tuple[int, ...]) -> torch.Tensor:
    """log ref(path) + r(path) / beta, whose logsumexp is the optimal value over beta."""
    at = [world.number[path[:k]] for k in range(len(path))]
    return sum(world.ref.log_softmax(1)[i, a] + world.reward[i, a] / world.beta for i, a in zip(at, path, strict=True))  # type: ignore[return-value]


def test_rewards_per_token():
    assert paid_at_end(reward=[2.0, 3.0], seq=[0, 0, 1])["token_reward"].values.tolist() == [0, 2, 3]
    assert paid_at_steps(reward=[1.0, np.nan, 3.0], step=[0, 0, 1, 2, 2])["token_reward"].values.tolist() == [0, 1, 0, 0, 3]


# ---- A*-PO


def test_values_from_remembered_rewards_by_hand():
    groups = [said_group([(5,), (6,)], [1.0, 0.0], key="a"), said_group([(5,), (6,)], [None, 0.0], key="b")]
    made, state = remember_rewards()(groups=groups, state={"a": [1.0]})
    assert made == [] and state == {"a": [1.0, 1.0, 0.0], "b": [0.0]}
    # a: 1/2 log((2 e^2 + 1) / 3) = 0.8303; b: 0; c was never measured
    columns, after = soft_advantage()(reward=[1.0, 0.0, 1.0, 1.0], task=np.array(["a", "a", "b", "c"]), state=state)
    value = 0.5 * math.log((2 * math.exp(2) + 1) / 3)
    assert columns["adv"].values[:3] == pytest.approx([1 - value, -value, 1.0]) and np.isnan(columns["adv"].values[3]) and after is state
    assert soft_value([1.0, 0.0, 0.0, 0.0], 1e4) == pytest.approx(0.25, abs=1e-4) and soft_value([1.0, 0.0], 1e-3) == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(BadValue, match="beta must be above 0"):
        soft_advantage(beta=0.0)(reward=[1.0], task=["a"], state=state)


def test_the_regression_is_zero_at_the_closed_form():
    draw = np.random.default_rng(0)
    ref, reward, beta = torch.tensor(draw.normal(size=5)).log_softmax(0), torch.tensor(draw.normal(size=5)), 0.4
    value = beta * torch.logsumexp(ref + reward / beta, 0)
    best = (ref + reward / beta).log_softmax(0)
    loss = lambda lp: advantage_regression(logp=lp, ref_logp=ref, adv=reward - value, seq=torch.arange(5), beta=beta)  # noqa: E731
    assert loss(best).max() < 1e-24 and loss(ref).max() > 0.1


def test_advantage_regression_by_hand():
    # beta 0.1: 0.1 (1 + 2) - 0.5 = -0.2, and 0.1 * -1 + 1 = 0.9; slopes 2 beta (...) on every token
    lp, seq = f64(-1, -1, -3), torch.tensor([0, 0, 1])
    loss = lambda x: advantage_regression(logp=x, ref_logp=f64(-2, -3, -2), adv=f64(0.5, -1.0), seq=seq, beta=0.1)  # noqa: E731
    assert loss(lp).tolist() == pytest.approx([0.04, 0.81])
    assert slope(loss, lp).tolist() == pytest.approx([-0.04, -0.04, 0.18])


def test_a_star_po_measures_first_and_then_draws_one_answer_a_prompt(letters):
    paid = bandit(paid="spread").stage.reward
    method = of("a_star_po", groups=4, samples=3, tasks=4)
    method = replace(method, stages=tuple(replace(s, reward=paid) for s in method.stages))
    loop = loop_of(method, letters)
    begin = weights_of(loop)
    (first,) = advance(loop)
    assert (first["stage"], first["episodes"], first["tokens/learned"]) == ("value", 12, 0) and equal(begin, weights_of(loop))
    known = {k: list(v) for k, v in loop.state.blocks["shared/rewards"].items()}
    assert len(known) == 4 and all(len(v) == 3 for v in known.values())
    told = advance(loop, 2)
    assert [(m["stage"], m["episodes"]) for m in told] == [("main", 4)] * 2 and not equal(begin, weights_of(loop))
    assert loop.state.blocks["shared/rewards"] == known
    _, batch = loop.under_way
    assert batch is not None
    want = [r - soft_value(known[t], 0.5) for r, t in zip(batch.get("reward", "seq"), batch.get("task", "seq"), strict=True)]
    assert batch.get("adv", "seq") == pytest.approx(want)


def test_a_long_measurement_is_not_a_starved_run(letters):
    method = of("a_star_po", groups=1, samples=1, tasks=200)  # 25 steps without an update; 20 starve
    method = replace(method, stages=tuple(replace(s, reward=bandit(paid="alike").stage.reward) for s in method.stages))
    assert {m["stage"] for m in advance(loop_of(method, letters), 25)} == {"value"}


# ---- REC


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
            given = {"old_logp": torch.zeros_like(lp), "adv": torch.full_like(lp, 0.5 * sign), "mask": mask, "importance": importance}
            assert ranged_reinforce(logp=lp, **given)[1].tolist() == [bool(k) for k in kept]
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
    ours = slope(lambda x: ranged_reinforce(logp=x, old_logp=old, adv=a, importance=True, low=eps[0], high=eps[1])[0], lp)
    assert torch.allclose(ours, slope(lambda x: clipped_ratio(logp=x, old_logp=old, adv=a, low=eps[0], high=eps[1]), lp), atol=1e-12)


def test_rec_is_grpo_with_importance_and_std():
    same_gradient(Study(of("rec", importance=True, std=True), groups_of()), Study(with_weigh(of("grpo"), "token_mean"), groups_of()), 1e-12)
    with pytest.raises(AssertionError):
        same_gradient(Study(of("rec", std=True), groups_of()), Study(with_weigh(of("grpo"), "token_mean"), groups_of()))


def test_stale_reinforce_can_point_the_wrong_way_and_importance_weights_right_it():
    """Three arms, drawn by mu while the policy is pi: the middle one beats mu's mean and is beaten by pi's."""
    reward, pi = np.array([1.0, 0.5, 0.0]), torch.tensor([0.6, 0.39, 0.01], dtype=torch.float64)
    mu = torch.tensor([0.01, 0.5, 0.49], dtype=torch.float64)
    true = pi * (torch.tensor(reward) - (pi * torch.tensor(reward)).sum())  # d J / d logits

    def ascent(adv: torch.Tensor, **knobs: Any) -> torch.Tensor:
        theta = pi.log().requires_grad_()
        (mu * ranged_reinforce(logp=theta.log_softmax(0), old_logp=mu.log(), adv=adv, mask="none", **knobs)[0]).sum().backward()
        return -theta.grad  # type: ignore[operator]

    adv = torch.tensor(reward) - (mu * torch.tensor(reward)).sum()
    # mu's mean is 0.26: mu A = (0.0074, 0.12, -0.1274); pi's is 0.795: pi A = (0.123, -0.115, -0.008); their product is -0.012
    assert ascent(adv).tolist() == pytest.approx([0.0074, 0.12, -0.1274], abs=1e-4)
    assert float(ascent(adv) @ true) == pytest.approx(-0.0119, abs=1e-3)
    assert torch.allclose(ascent(adv, importance=True), true, atol=1e-12)


def test_opmd_is_what_it_says():
    """-A sum logp + tau/2 (sum d)^2 by plain autograd, mean over answers, against the method's own term."""
    (term,) = of("opmd", tau=0.3).stage.updates[0].terms
    lp, old, a, seq = columns(5, [3, 1, 2])
    ours = slope(lambda x: term.coef * term.fn(logp=x, ref_logp=old, adv=a, seq=seq), lp)  # type: ignore[operator]

    def plain(x):
        total = lambda y: torch.zeros(3, dtype=x.dtype).index_add(0, seq, y)  # noqa: E731
        return -a * total(x) + 0.15 * total(x - old) ** 2

    assert term.fn.columns["old_logp"] == "token" and torch.allclose(ours, slope(plain, lp), atol=1e-12)


def test_asymre_lowers_the_baseline_of_every_group():
    assert lowered(adv=[0.5, -0.5, 0.0], by=0.1)["adv"].values == pytest.approx([0.6, -0.4, 0.1])
    study = Study(of("asymre", tau=0.2), groups_of())
    centred = Study(of("rec", mask="none"), groups_of())
    assert study.batch.get("adv", "seq") == pytest.approx(centred.batch.get("adv", "seq") + 0.2)
    same_gradient(Study(of("asymre", tau=0.0), groups_of()), centred, 1e-12)


def test_red_drops_bad_answers_until_there_are_as_many_good_ones():
    reward, group = np.array([1.0, 0, 0, 0, 1, 1, 0, 5]), np.array([0, 0, 0, 0, 1, 1, 1, 2])
    seq = np.repeat(np.arange(8), 2)
    ids = np.arange(16)
    keep = keep_balanced(reward=reward, group=group, id=ids, seq=seq)["keep"].values
    assert keep[0] == 1 and keep[1:4].sum() == 1 and keep[4:].tolist() == [1, 1, 1, 1]
    order = np.array([3, 0, 2, 1, 4, 5, 6, 7])
    moved = np.concatenate([ids[seq == i] for i in order])
    again = keep_balanced(reward=reward[order], group=group[order], id=moved, seq=seq)["keep"].values
    assert again.tolist() == keep[order].tolist(), "which goes is a matter of what it says, not of where it stands"
    unknown = keep_balanced(reward=[np.nan, 0.0], group=[0, 0], id=[1, 2], seq=[0, 1])["keep"].values
    assert np.isnan(unknown).all()
    kept = Study(of("rec", drop=True, mask="none"), groups_of())
    adv = kept.batch.get("adv", "seq")
    assert np.bincount(kept.batch.get("group", "seq"), weights=adv) == pytest.approx(0, abs=1e-12), "the baseline is that of those that stay"


# ---- M2PO


def brute_force(squares: list[float], budget: float, form: str) -> set[float]:
    """The squares that stay, found by trying: ever fewer of the largest, or ever lower caps."""
    ordered = sorted(squares)
    for left in range(len(ordered), -1, -1):
        kept = ordered[:left]
        if form == "remove" and (not kept or sum(kept) / len(kept) <= budget):
            return set(kept)
        if form == "cap" and (not kept or sum(min(v, kept[-1]) for v in ordered) / len(ordered) <= budget):
            return set(kept)
    raise AssertionError


@quick
@given(st.lists(st.integers(1, 400), max_size=12, unique=True), st.sampled_from([0.04, 0.3, 1.0]), st.sampled_from(["remove", "cap"]))
def test_the_cut_is_what_trying_finds(values, budget, form):
    squares = torch.tensor([v / 100 for v in values], dtype=torch.float64)
    cut = cut_of_moment(squares, budget, form)
    assert {v for v in squares.tolist() if v < cut} == brute_force(squares.tolist(), budget, form)


def test_bounded_moment_by_hand():
    # at risk: tokens 0, 1 (A > 0, up) and 4 (A < 0, down), d = 0.1, 0.5, -0.3. Budget 0.06: squares 0.01, 0.09, 0.25;
    # the mean of the first two is 0.05, of all 0.1167: token 1 goes. Token 2 (good, down) and 3 (bad, up) never do.
    lp, adv = f64(0.1, 0.5, -2.0, 3.0, -0.3), f64(1, 2, 1, -1, -1)
    given = {"old_logp": torch.zeros_like(lp), "adv": adv, "batch": torch.zeros(5, dtype=torch.long)}
    loss, kept, told = bounded_moment(logp=lp, **given, budget=0.06)
    assert kept.tolist() == [True, False, True, True, True] and told["moment"].mean().item() == pytest.approx(0.35 / 3)
    assert loss[kept].tolist() == pytest.approx([-math.exp(0.1), -math.exp(-2), math.exp(3), math.exp(-0.3)])
    # capped at 0.09: (0.01 + 2 * 0.09) / 3 = 0.0633 is above: token 4 goes as well; a floor of 0.5 above keeps 1.65 out and one of 0.7 not
    assert bounded_moment(logp=lp, **given, budget=0.06, form="cap")[1].tolist() == [True, False, True, True, False]
    assert bounded_moment(logp=lp, **given, budget=0.06, form="cap", low=0.3, high=0.7)[1].all()
    assert bounded_moment(logp=lp, **given, budget=1.0)[1].all()
    with pytest.raises(BadValue, match="remove or cap"):
        bounded_moment(logp=lp, **given, form="mask")


def test_m2po_without_a_budget_is_the_importance_weighted_policy_gradient():
    update = of("m2po").stage.updates[0]
    plain = of("m2po").but(updates=(replace(update, terms=(Term(clipped_importance(high=1e9), weigh=token_mean()),)),))
    same_gradient(Study(of("m2po", budget=1e9), groups_of()), Study(plain, groups_of()), 1e-12)
    with pytest.raises(AssertionError):
        same_gradient(Study(of("m2po"), groups_of()), Study(plain, groups_of()))


# ---- BAPO


def test_bounds_are_searched_until_the_good_have_their_share():
    ratio, adv = f64(2.0, 0.5, 0.5), f64(1.0, -1.0, -1.0)
    # at (0.6, 1.2): 1.2 good against 0.6 + 0.6 bad: a share of 1/2, enough as it is
    assert balanced_bounds(ratio, adv, 0.5, (0.6, 0.9), (1.2, 3.0), 0.05) == (0.6, 1.2, pytest.approx(0.5))
    # 3 bad ones: 1.2 / 3. Raising low makes it worse here (the bad count by low), up to 0.9: 1.2 / 3.9; then high, up to the ratio 2: 2 / 4.7;
    # beyond it nothing changes, so it ends at the largest bounds
    worse = torch.cat([ratio, f64(0.5)]), torch.cat([adv, f64(-1.0)])
    low, high, share = balanced_bounds(*worse, 0.5, (0.6, 0.9), (1.2, 3.0), 0.1)
    assert (low, high) == (pytest.approx(0.9), pytest.approx(3.0)) and share == pytest.approx(2 / 4.7)
    # 1 good of ratio 2 against bad of 1.5: low does nothing (0.9 < 1.5), high stops as soon as it is enough: 1.5 / 3.0
    low, high, share = balanced_bounds(f64(2.0, 1.5), f64(1.0, -1.0), 0.5, (0.6, 0.9), (1.2, 3.0), 0.1)
    assert (low, high, share) == (pytest.approx(0.9), pytest.approx(1.5), pytest.approx(0.5))
    assert balanced_bounds(f64(1.0), f64(1.0), 0.5, (0.6, 0.9), (1.2, 3.0), 0.1) == (0.6, 1.2, 1.0)
    with pytest.raises(BadValue, match="step must be above 0"):
        balanced_bounds(ratio, adv, 0.5, (0.6, 0.9), (1.2, 3.0), 0.0)


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
    assert told["good_share"] >= 0.5 or (low, high) == pytest.approx((0.9, 3.0))


# ---- what they all stand on


@pytest.mark.parametrize("name", ["rec", "m2po", "bapo", "grpo"])
def test_stale_samples_by_late_deliveries_and_by_late_batches(name, letters):
    assert of(name, sync=3).stage.sync == 3
    method = of(name, groups=2, rollouts=3, sync=1, delay=2).but(reward=bandit(paid="spread").stage.reward)
    loop, stored = loop_of(method, letters), {}
    loop.find = stored.__getitem__
    told = []
    for _ in range(4):
        told += advance(loop)
        stored |= {e.id: e.tree for g in loop.under_way[0] for e in g.episodes}
    assert ["loss" in m for m in told] == [False, False, True, True]
    _, batch = loop.under_way
    assert batch is not None and set(batch.get("version").tolist()) == {1}, "the fourth step learns what the second drew"


def test_waiting_for_late_batches_is_not_starving(letters):
    method = of("grpo", groups=1, rollouts=2, delay=21).but(reward=bandit(paid="spread").stage.reward)  # 20 steps without a lesson starve
    told = advance(loop_of(method, letters), 21)
    assert all("loss" not in m for m in told)


def test_a_term_tells_what_it_kept_and_found(letters):
    method = of("bapo", groups=2, rollouts=3, sync=1).but(reward=bandit(paid="spread").stage.reward)
    (told,) = advance(loop_of(method, letters))
    assert 0 < told["kept"] <= 1 and 0.6 <= told["clip_low"] <= 0.9 and 0 < told["good_share"] < 1
    (told,) = advance(loop_of(of("m2po", groups=2, rollouts=3, sync=1).but(reward=method.stage.reward), letters))
    assert told["moment"] >= 0 and told["kept"] == pytest.approx(1.0)


def test_nats_are_the_mean_surprise_of_what_was_drawn(letters):
    loop = loop_of(bandit(paid="spread"), letters)
    (told,) = advance(loop)
    groups, _ = loop.under_way
    logp = np.concatenate([e.tree.logp[e.tree.chosen] for g in groups for e in g.episodes]).astype(np.float64)
    assert told["nats"] == pytest.approx(-logp.mean()) and told["nats"] == pytest.approx(math.log(264), abs=0.1)
