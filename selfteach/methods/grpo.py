"""GRPO (2402.03300), and its variants in other libraries.

The mean and standard deviation of a group of answers to one prompt replace PPO's critic,

    A_i = (r_i - mean(r)) / std(r)
"""

from __future__ import annotations

from dataclasses import replace

from ..core import Block, Claim, Method, Term, Update, mechanism, method, outcome, premise
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.kl import kl
from ..objective.loss_weights import sequence_mean, sequence_sum, token_mean
from ..objective.policy import clipped_ratio
from .base import delayed_trajectories, policy_method


@method(family="objective", paper="2402.03300")
def grpo(
    groups: int = 16,
    rollouts: int = 8,
    clip: float = 0.2,
    beta: float = 0.0,
    epochs: int = 1,
    minibatches: int = 1,
    sync: int = 1,
    delay: int = 0,
) -> Method:
    """Group relative policy optimisation: PPO's clip on rewards normalised within a group, without a critic.

        A_i  = (r_i - mean(r)) / std(r)
        rho  = exp(logp - old_logp)
        loss = mean over sequences of the mean over tokens of -min(rho A, clip(rho, 1 - clip, 1 + clip) A) + beta k3

    Shao et al. 2024, equations 3 and 4; k3 estimates the KL to the reference, the paper's beta is 0.04. Here std is
    over n - 1, and the advantage is exactly 0 in a group of equal rewards. sync, delay: train on stale samples, as a
    baseline of methods for off-policy data (see `policy_method` and `delayed_trajectories`).
    """
    return policy_method(
        credit=(delayed_trajectories(delay), norm()),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean()),
        more=(Term(kl(kind="k3"), loss_weights=sequence_mean(), coef=beta),) if beta else (),
        groups=groups,
        rollouts=rollouts,
        epochs=epochs,
        minibatches=minibatches,
        sync=sync,
    )


@method(family="objective", paper="2402.03300")
def grpo_trl(
    groups: int = 16,
    rollouts: int = 8,
    low: float = 0.2,
    high: float = 0.2,
    beta: float = 0.0,
    epochs: int = 1,
    minibatches: int = 1,
) -> Method:
    """GRPO with TRL's defaults: std over n - 1 plus 1e-4, a token mean over the batch, no KL penalty.

    low, high: epsilon and epsilon_high there. beta: of k3 to the start, in the same mean. epochs: num_iterations.
    """
    base = grpo(groups=groups, rollouts=rollouts, beta=beta, epochs=epochs, minibatches=minibatches)
    return _over_tokens(base, norm(eps=1e-4), clipped_ratio(low=low, high=high))


@method(family="objective", paper="2402.03300")
def grpo_verl(
    groups: int = 16,
    rollouts: int = 8,
    low: float = 0.2,
    high: float = 0.2,
    beta: float = 0.0,
    epochs: int = 1,
    minibatches: int = 1,
) -> Method:
    """GRPO with verl's defaults: std + 1e-6, a group of one has its raw reward, token mean, dual clip at 3.

    low, high: clip_ratio_low and clip_ratio_high there. beta: kl_loss_coef, of k3 to the start. epochs: ppo_epochs;
    minibatches: train_batch_size over ppo_mini_batch_size.
    """
    base = grpo(groups=groups, rollouts=rollouts, beta=beta, epochs=epochs, minibatches=minibatches)
    return _over_tokens(base, norm(eps=1e-6, singleton="raw"), clipped_ratio(low=low, high=high, dual=3.0))


@method(family="objective", paper="2402.03300")
def grpo_sum(groups: int = 16, rollouts: int = 8) -> Method:
    """GRPO with the sum over a sequence's tokens instead of their mean: an answer's weight grows with its length."""
    return grpo(groups=groups, rollouts=rollouts).replace(
        updates=(Update(("policy",), (Term(clipped_ratio(), loss_weights=sequence_sum()),)),)
    )


def _over_tokens(base: Method, advantage: Block, ratio: Block) -> Method:
    """GRPO with this advantage and this ratio, each of its terms a mean over the tokens of the batch."""
    (update,) = base.stage.updates
    terms = tuple(replace(t, loss_weights=token_mean()) for t in (Term(ratio), *update.terms[1:]))
    return base.replace(credit=(per_trajectory(), advantage), updates=(replace(update, terms=terms),))


grpo.claim = Claim(
    (
        premise("accuracy", "ppo", "start", by=0.2, fails_at=0.9),  # PPO learns, so that there is something to match
        premise("mean:rollout/mixed_group_fraction", "self", 0.3, fails_at=0.2),  # rewards of a group differ
        # no critic: half of the learning is saved
        mechanism("sum:time/learn_s", "self", "ppo", relation="<", scale="ratio", by=0.25, fails_at=0.0),
        outcome("accuracy", "self", "ppo", relation=">=", by=0.05, fails_at=1.0),
        outcome("auc", "self", "ppo", relation=">=", by=0.05, fails_at=1.0),
        outcome("auc", "self", "reinforce", by=0.03, fails_at=0.98),  # a mean for each prompt, not one of all
    ),
    arms={"ppo": ("ppo", {"minibatches": 1, "critic_epochs": 4}), "reinforce": ("reinforce", {"beta": 0.0})},
    regime="offset",  # rewards differ between prompts, so that a baseline for each matters
    idea=("main.credit", "main.update", "models", "weights"),
    because="the mean reward of a group is baseline enough, so that no critic is trained",
)
