"""THR: influence as a double sum and as a derivative, and the advantages scaled by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.battery import groups_of, of, same, start

from selfteach.core import BadValue, Term, Update, collate
from selfteach.credit.composers import per_trajectory
from selfteach.learner.local import LocalLearner
from selfteach.learner.settings import LearnerSettings as LearnerSettings
from selfteach.loop.method_on_task import needed
from selfteach.methods.thr import steer_by_influence
from selfteach.objective.likelihood import nll


def influence_by_hand(learner: LocalLearner, batch: Any) -> np.ndarray:
    """The double sum, with the whole [N, V] at once."""
    model = learner.groups["policy"].trunk
    hidden = torch.from_numpy(batch.get("last_hidden"))
    probs = (model.logits(hidden) / torch.from_numpy(batch.get("temperature"))[:, None]).softmax(-1)
    g = torch.nn.functional.one_hot(torch.from_numpy(batch.ids[batch.place].astype(np.int64)), probs.shape[1]) - probs
    both = (g @ g.T) * (hidden @ hidden.T)
    seq, group, reward = batch.get("seq"), batch.get("group"), batch.get("reward")
    means = {k: np.mean(batch.get("reward", "seq")[batch.get("group", "seq") == k]) for k in set(group.tolist())}
    right = reward > np.array([means[k] for k in group.tolist()])
    assert 0 < right.sum() < len(right) and len(seq) == len(both)
    pairs = torch.from_numpy(right[:, None] & (group[:, None] == group[None, :]))
    return (both * pairs).sum(0).detach().numpy()


@pytest.mark.parametrize("rows,tokens", [(64, 4096), (1, 30)])
def test_influence_is_the_double_sum_of_products(rows, tokens, monkeypatch):
    monkeypatch.setattr("selfteach.learner.group_columns.chunk_rows", lambda vocabulary: rows)
    method = needed(of("thr"))
    learner = LocalLearner(method.weights, method.models, start(), 0, LearnerSettings(micro_tokens=tokens))
    groups = groups_of()
    trees = {e.id: e.tree for g in groups for e in g.episodes}
    batch = collate(per_trajectory()(groups=groups), trees.__getitem__)
    temperature = np.where(np.arange(batch.size("token")) % 2, 0.7, 1.0)
    batch.put("temperature", "token", temperature)
    learner.forward(batch, ["influence", "last_hidden", "logp"])
    assert batch.get("influence") == pytest.approx(influence_by_hand(learner, batch), abs=1e-10)


def test_influence_is_the_derivative_of_the_right_answers_log_likelihood():
    """Moving the output layer along the gradient of one token's logp changes the right answers' logp by its influence,
    to first order.
    """
    method = needed(of("thr"))
    learner = LocalLearner(method.weights, method.models, start(), 0, LearnerSettings())
    groups = groups_of(("g0",))
    batch = collate(per_trajectory()(groups=groups), {e.id: e.tree for g in groups for e in g.episodes}.__getitem__)
    learner.forward(batch, ["influence", "last_hidden"])
    model = learner.groups["policy"].trunk
    assert model is not None
    hidden, ids = torch.from_numpy(batch.get("last_hidden")), torch.from_numpy(batch.get("id").astype(np.int64))
    weight, reward = model.lm_head.weight.detach().clone().requires_grad_(), batch.get("reward")
    right = torch.from_numpy(reward > batch.get("reward", "seq").mean())

    def logp(w: torch.Tensor) -> torch.Tensor:
        return (hidden @ w.T).log_softmax(-1).gather(-1, ids[:, None])[:, 0]

    for token in (0, 3, 7):
        (slope,) = torch.autograd.grad(logp(weight)[token], weight)
        with torch.no_grad():
            change = (logp(weight + 1e-5 * slope) - logp(weight - 1e-5 * slope))[right].sum() / 2e-5
        assert float(change) == pytest.approx(float(batch.get("influence")[token]), rel=1e-5)


def test_a_quantity_of_a_group_has_no_gradient():
    method = of("thr").replace(credit=(per_trajectory(),))
    learner = LocalLearner(method.weights, needed(of("thr")).models, start(), 0, LearnerSettings())
    groups = groups_of()
    batch = collate(per_trajectory()(groups=groups), {e.id: e.tree for g in groups for e in g.episodes}.__getitem__)
    update = Update(("policy",), (Term(nll().reading(logp="influence")),))
    batch.put("w0", "token", np.ones(batch.size("token")))
    with pytest.raises(BadValue, match="a quantity of whole groups has no gradient"):
        learner.backward(batch, update)


def test_advantages_are_scaled_by_the_sign_of_influence():
    # Group 0: right answer 0 with s = 1, 3 (mean 2), wrong answers 1 with 4, -5 and 2 with 2. tau = 2.
    # T = sign(A) s: 1, 3 | -4, 5 | -2: the second and the next two pass, p = 1/4 up where T > 0, down where T < 0.
    # Group 1 has its own tau, 1/2, of its only right answer; its wrong one has |T| = 1/4.
    given = {"adv": [2.0, -1.0, -1.0, 1.0, -1.0], "influence": [1.0, 3.0, 4.0, -5.0, 2.0, 0.5, 0.25]}
    given |= {"reward": [1.0, 0.0, 0.0, 1.0, 0.0], "seq": [0, 0, 1, 1, 2, 3, 4], "group": [0, 0, 0, 1, 1]}
    got = steer_by_influence(**given, p=0.25)["adv"].values
    assert got.tolist() == [0, 2.5, -0.75, -1.25, 0, 0, 0]
    assert steer_by_influence(**given, p=-0.25)["adv"].values.tolist() == [0, 1.5, -1.25, -0.75, 0, 0, 0]
    every = steer_by_influence(**given, p=0.25, threshold=False)["adv"].values
    assert every.tolist() == [2.5, 2.5, -0.75, -1.25, -0.75, 1.25, -0.75]


def test_thr_without_threshold_and_p_is_grpo():
    same(of("thr", p=0.0, threshold=False), of("grpo"))
    with pytest.raises(AssertionError):
        same(of("thr", p=0.2, threshold=False), of("grpo"))
