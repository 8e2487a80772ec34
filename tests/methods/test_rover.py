"""ROVER: its residual by hand, and the theorem behind it on small trees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.battery import Study, groups_of, of, same_gradient
from support.tensors import f64, slope

from selfteach.core import Term
from selfteach.methods.rover import uniform_bellman
from selfteach.objective.loss_weights import token_mean
from selfteach.objective.policy import policy_gradient


def test_uniform_bellman_by_hand():
    # rho 2. Sequence 0: Q = 2 (0.3, -0.1) = (0.6, -0.2), V = 2 (9, 0.4) = (18, 0.8); targets 0.5 + 0.8 and 0.5, so
    # the differences are -0.7 and -0.7. Sequence 1, one token: Q = 0.4 against -1.
    lp, seq = f64(-1.0, -2.0, -3.0), torch.tensor([0, 0, 1])
    rest = {"prox_logp": lp - f64(0.3, -0.1, 0.2), "mean_logp": f64(9.0, 0.4, 7.0), "prox_mean_logp": f64(0, 0, 0)}
    rest |= {"adv": f64(0.5, 0.5, -1.0), "seq": seq, "rho": 2.0}
    assert uniform_bellman(logp=lp, **rest).tolist() == pytest.approx([0.49, 0.49, 1.96])
    assert uniform_bellman(logp=lp, **rest, gamma=0.0)[0].item() == pytest.approx(0.01)
    # no gradient through the target: only the token's own logp has one, 2 rho (Q - target)
    assert slope(lambda x: uniform_bellman(logp=x, **rest), lp).tolist() == pytest.approx([-2.8, -2.8, 5.6])
    mean, live = f64(9.0, 0.4, 7.0, grad=True), lp.clone().requires_grad_()
    uniform_bellman(logp=live, **{**rest, "mean_logp": mean}).sum().backward()
    assert mean.grad is None


def tree(draw: np.random.Generator, actions: int = 3, depth: int = 4) -> dict[tuple[int, ...], int]:
    """Inner nodes of a random tree: path -> number of its actions; what is not in it is a leaf."""
    out: dict[tuple[int, ...], int] = {}
    front: list[tuple[int, ...]] = [()]
    while front:
        node = front.pop()
        if len(node) < depth and (not node or draw.random() < 0.75):
            out[node] = int(draw.integers(2, actions + 1))
            front += [(*node, a) for a in range(out[node])]
    return out


@pytest.mark.parametrize("seed", range(10))
def test_the_greedy_policy_on_the_uniform_policys_q_is_optimal(seed):
    """The theorem, with the values learned by the term itself: a free Q per state and action, every path a sequence
    with its reward at the end.
    """
    draw = np.random.default_rng(seed)
    inner = tree(draw)
    number = {(s, a): i for i, (s, a) in enumerate((s, a) for s in inner for a in range(inner[s]))}
    leaves = [(*s, a) for s in inner for a in range(inner[s]) if (*s, a) not in inner]
    wins = {leaf: float(draw.random() < 0.15) for leaf in leaves}
    wins[leaves[int(draw.integers(len(leaves)))]] = 1.0
    rows = [(leaf, k, number[leaf[:k], leaf[k]]) for leaf in leaves for k in range(len(leaf))]
    seq = torch.tensor([leaves.index(leaf) for leaf, _, _ in rows])
    at = torch.tensor([i for _, _, i in rows])
    reward = torch.tensor([wins[leaf] * (k == len(leaf) - 1) for leaf, k, _ in rows], dtype=torch.float64)
    q = torch.zeros(len(number), dtype=torch.float64, requires_grad=True)
    visits = torch.bincount(at).double()
    for _ in range(
        6
    ):  # each row's target is a constant, so half the gradient over the visits is an exact backup; the tree is 4 deep
        mean = torch.stack(
            [torch.stack([q[number[leaf[:k], a]] for a in range(inner[leaf[:k]])]).mean() for leaf, k, _ in rows]
        )
        zero = torch.zeros_like(mean)
        loss = uniform_bellman(
            logp=q[at], prox_logp=zero, mean_logp=mean, prox_mean_logp=zero, adv=reward, seq=seq
        ).sum()
        (grad,) = torch.autograd.grad(loss, q)
        with torch.no_grad():
            q -= grad / (2 * visits)

    def random_value(path: tuple[int, ...]) -> float:
        return wins[path] if path in wins else float(np.mean([random_value((*path, a)) for a in range(inner[path])]))

    learned = q.detach().numpy()
    for (s, a), i in number.items():
        assert learned[i] == pytest.approx(random_value((*s, a)), abs=1e-12)
        assert (learned[i] > 0) == any(wins[leaf] for leaf in leaves if leaf[: len(s) + 1] == (*s, a)), (
            "above 0 exactly where a success can be reached"
        )
    path: tuple[int, ...] = ()
    while path in inner:
        path = (*path, int(np.argmax([learned[number[path, a]] for a in range(inner[path])])))
    assert wins[path] == 1.0


def test_the_first_minibatch_has_the_gradient_of_policy_gradient():
    plain = Term(policy_gradient(), loss_weights=token_mean(), coef=2 * 0.7)
    update = replace(of("rover").stage.updates[0], terms=(plain,))
    same_gradient(
        Study(of("rover", rho=0.7), groups_of()), Study(of("rover").replace(updates=(update,)), groups_of()), 1e-12
    )
