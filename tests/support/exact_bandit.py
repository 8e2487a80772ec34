"""A bandit small enough to enumerate: what one step of a method does to the exact expected reward of a policy.

The answers are all pairs of two tokens, each once in every group. The policy is nearly uniform over them, so that a
group's mean over answers is the policy's own, and what a gradient does in expectation is read off one batch.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from selfteach.core import Episode, Method, Ref, RolloutGroup, RolloutRequest, Sampling, Score, Task, Trajectory, Tree
from selfteach.model.attention import causal_attention
from selfteach.model.transformer import Transformer
from support.battery import VOCAB, Study, beside
from support.models import mini

PROMPT, TOKENS = (3, 4), (1, 2)
ANSWERS = np.array(list(itertools.product(TOKENS, repeat=2)))
REWARD = np.array([0.0, 1.0, 1.0, 1.0])  # of 11, 12, 21, 22: right is to say a 2
SIZE = 0.02  # length of the step in the space of weights: small, so that the reward is nearly linear along it


@cache
def policy() -> Transformer:
    model = mini(VOCAB, width=16, head_dim=8, hidden=24).double()
    with torch.no_grad():
        model.named_tensors()["model.embed_tokens.weight"].mul_(0.1)
    return model


@torch.no_grad()
def log_probs(model: Transformer) -> np.ndarray:
    """Log-probability of each token of each answer, among the whole vocabulary. f64[4, 2]."""
    ids = torch.tensor([[*PROMPT, *answer] for answer in ANSWERS.tolist()])
    logp = model.logits(model(ids, causal_attention))[:, len(PROMPT) - 1 : -1].log_softmax(-1)
    return logp.gather(-1, torch.tensor(ANSWERS)[..., None])[..., 0].numpy()


def expected_reward(model: Transformer) -> float:
    """The mean reward of an answer drawn from the policy, given that it is one of the four."""
    p = np.exp(log_probs(model).sum(1))
    return float(p @ REWARD / p.sum())


def groups_of(reward: Callable[[int], np.ndarray]) -> list[RolloutGroup]:
    """Four groups of all answers, the n-th scored by `reward(n)`."""
    logp, out = log_probs(policy()), []
    for n in range(len(ANSWERS)):
        episodes, scores = [], {}
        for i, (answer, value) in enumerate(zip(ANSWERS, reward(n), strict=True)):
            tree = Tree()
            leaf = tree.add(
                tree.add(-1, PROMPT), answer, action_mask=True, logp=logp[i], version=0, sampling=Sampling()
            )
            at = Ref(f"train/0/0/g{n}/{i}", leaf)
            episodes.append(Episode(at.episode, tree, [Trajectory(at, "policy", f"g{n}")]))
            scores[at] = Score(float(value))
        out.append(
            RolloutGroup(
                RolloutRequest(Task(f"g{n}", "p"), len(ANSWERS), key=f"g{n}"), episodes, beside(scores), f"g{n}"
            )
        )
    return out


def gradient(method: Method, reward: Callable[[int], np.ndarray]) -> dict[str, torch.Tensor]:
    """The gradient of the policy's weights, by name; zeros where nothing was learned."""
    study = Study(method, groups_of(reward), model=policy(), away=0.0)
    names = policy().named_tensors()
    return {n: study.gradient.get(f"policy/{n}", torch.zeros_like(p)) for n, p in names.items()}


def gains(method: Method) -> tuple[float, float, float]:
    """By how much a step raises the exact expected reward: with the true reward, with 1 - reward, and with rewards that
    are dealt out so that over the groups each answer gets each reward once. All steps have the scale of the first.
    """
    truth = gradient(method, lambda n: REWARD)
    length = torch.sqrt(sum((g**2).sum() for g in truth.values()))
    before = expected_reward(policy())

    def gain(direction: dict[str, torch.Tensor]) -> float:
        if not length:
            return 0.0  # no step: what credit is made of has to be learned first
        model = copy.deepcopy(policy())
        with torch.no_grad():
            for name, p in model.named_tensors().items():
                p -= SIZE * direction[name] / length
        return expected_reward(model) - before

    flipped, shuffled = gradient(method, lambda n: 1 - REWARD), gradient(method, lambda n: np.roll(REWARD, n))
    return gain(truth), gain(flipped), gain(shuffled)
