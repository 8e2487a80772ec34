"""What a step learns, against the loss itself: gradient, rows of `where`, `when` it learns, epochs and minibatches."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.battery import RecordingLearner, Study, groups_of, of, start

from selfteach.core import Batch, History, Method, Token, block
from selfteach.learner import LocalLearner
from selfteach.learner.settings import LearnerSettings
from selfteach.loop.learn_batch import learn_batch
from selfteach.loop.state import RunState
from selfteach.model.attention import causal_attention
from selfteach.objective.schedules import every


def test_a_gradient_is_by_finite_differences_what_it_should_be():
    """The whole way from groups to gradient: -sum_i A_i sum_t logp_t / S for REINFORCE with centred rewards."""
    study, groups = Study(of("rloo", groups=3, rollouts=4, beta=0.0), groups_of()), groups_of()
    model = copy.deepcopy(start())

    def loss() -> float:
        total = 0.0
        for g in groups:
            rewards = [s.value for s in g.scores["reward"].values()]
            for i, e in enumerate(g.episodes):
                adv = rewards[i] - (sum(rewards) - rewards[i]) / 3
                ids = torch.tensor(e.tree.id[e.tree.places(e.trajectories[0].leaf.node)].astype(np.int64))
                with torch.no_grad():
                    logp = model.logits(model(ids[None], causal_attention))[0].log_softmax(-1)
                sampled = np.flatnonzero(e.tree.action_mask)
                total -= adv * sum(float(logp[t - 1, ids[t]]) for t in sampled) / 12
        return total

    name, p = next((n, p) for n, p in model.named_tensors().items() if "q_proj" in n)
    for place in ((0, 0), (3, 5)):
        ends = []
        for step in (1e-5, -2e-5):
            with torch.no_grad():
                p[place] += step
            ends.append(loss())
        with torch.no_grad():
            p[place] += 1e-5
        slope = (ends[0] - ends[1]) / 2e-5
        assert float(study.gradient[f"policy/{name}"][place]) == pytest.approx(slope, rel=1e-4, abs=1e-8)


@block
def first_half(*, seq: Token) -> Token:
    """The rows of the first six of twelve sequences."""
    return np.asarray(seq) < 6


def learned(method: Method, **change: Any) -> tuple[list[Batch], list[int]]:
    """The batches that each optimiser step of two training steps gets, and how many there are in each step."""
    (update,) = method.stage.updates
    stage = replace(method.stage, updates=(replace(update, **change),))
    learner = RecordingLearner(method.weights, method.models, start(), 0, LearnerSettings())
    counts = []
    for step in range(2):
        before, told = len(learner.batches), list[tuple[int, int]]()
        learn_batch(
            Study(method, groups_of(), passes=False).batch,
            stage,
            learner,
            RunState(step, history=History(step)),
            on_learned=lambda done, total, told=told: told.append((done, total)),
        )
        counts.append(len(learner.batches) - before)
        planned = stage.updates[0].epochs * stage.updates[0].minibatches
        assert told == ([(n + 1, planned) for n in range(counts[-1])] or [(planned, planned)])
    return [b for b, _ in learner.batches], counts


def test_rows_epochs_minibatches_and_conditions_of_an_update():
    whole, counts = learned(of("rloo"))
    assert counts == [1, 1] and whole[0].size("seq") == 12
    half, _ = learned(of("rloo"), where=first_half())
    assert half[0].names == whole[0].names[:6]
    parts, counts = learned(of("rloo"), epochs=2, minibatches=3)
    assert counts == [6, 6] and [b.size("seq") for b in parts[:3]] == [4, 4, 4]
    for epoch in (parts[:3], parts[3:6]):
        assert sorted(n for b in epoch for n in b.names) == sorted(whole[0].names)
    assert parts[0].names != parts[3].names, "each epoch has a shuffling of its own"
    assert learned(of("rloo"), when=every(steps=2))[1] in ([1, 0], [0, 1])


def test_the_weights_move_by_the_rate_that_is_given():
    """AdamW's first step moves every weight that has a gradient by the rate."""
    method = of("rloo")
    batch = Study(method, groups_of(), passes=False).batch
    for lr, step, want in ((0.01, 0, 0.01), (lambda s: 0.01 * (s + 1), 2, 0.03)):
        learner = LocalLearner(method.weights, method.models, start(), 0, LearnerSettings())
        metrics = learn_batch(batch, method.stage, learner, RunState(step), lr)
        name, now = next((n, p) for n, p in learner.weights("policy").items() if "q_proj" in n)
        moved = (now - start().named_tensors()[name]).abs().max()
        assert float(moved) == pytest.approx(want, rel=1e-3) and metrics["policy/lr"] == pytest.approx(want)
