"""RLSC, reinforcement learning via self-confidence (Li et al. 2025, arXiv 2506.06395).

The likelihood of each sample is weighted by the policy's own probability of it, which sharpens the policy at its mode.

    F(p)   = E_{y ~ p} p(y)        the probability that two samples agree
    grad F = 2 E_{y ~ p} p(y) grad log p(y)
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..core import (
    BadValue,
    Claim,
    Column,
    Method,
    Sampling,
    Seq,
    Term,
    Token,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..credit import segments as seg
from ..credit.composers import per_trajectory
from ..objective.likelihood import weighted_nll
from ..objective.loss_weights import sequence_sum
from ..reward.answer import exact_match
from ..reward.vote import majority_vote
from .base import policy_method


@method(
    family="selfreward",
    paper="2506.06395",
    catalogue=279,
    ignores_reward="its advantage is the policy's own probability",
)
def rlsc(
    groups: int = 8,
    rollouts: int = 16,
    smooth: float = 0.1,
    by: Literal["sequence", "length", "group"] = "sequence",
    temperature: float = 0.5,
) -> Method:
    """Maximise self-confidence: the likelihood of each sample, weighted by the policy's own probability of it.

        loss = -mean_i (p_old(y_i) + smooth) log p(y_i),   p_old(y) = exp(sum_t log p_old(y_t))

    Li et al. 2025, equations 4 to 7 and algorithm 1: 16 samples a prompt at temperature 0.5, ten or twenty steps in
    all, no label, no reward model, no KL, no clip. As in algorithm 1, both probabilities are those of the distribution
    that is sampled, logits / temperature, and log p is summed over the tokens; there an optimiser step is of one
    question, here of `groups`. p_old of a long answer is nearly 0, so that its weight is `smooth` alone, the same for
    all; by="group" takes it over the group's largest, by="length" is the geometric mean over its tokens, which differs
    little between answers. The reward, the agreement with the majority, is a metric alone.
    """
    return policy_method(
        credit=(per_trajectory(), own_probability(by=by, smooth=smooth)),
        term=Term(weighted_nll(), loss_weights=sequence_sum()),
        groups=groups,
        rollouts=rollouts,
    ).replace(reward=(majority_vote(metric_judge=exact_match()),), sampling=Sampling(temperature=temperature))


@block
def own_probability(
    *, logp: Token, seq: Token, group: Seq, by: Literal["sequence", "length", "group"] = "sequence", smooth: float = 0.1
) -> dict[str, Column]:
    """The probability of a sequence under the policy itself, as its advantage (equations 6 and 7).

        A_i = p_i + smooth

        by="sequence"   p_i = exp(sum_t logp_t), the paper's, which is nearly 0 for all but short answers
        by="length"     p_i = exp(1/L_i sum_t logp_t)
        by="group"      p_i = exp(sum_t logp_t - max_j sum_t logp_jt),  j over the group

    Args: logp f64[N], as the step began, at the temperature of sampling; seq i64[N]; group i64[S]. smooth: adds the
    same weight for all samples, whose gradient is 0 in expectation. Returns: adv f64[S]; NaN where a log-probability is
    unknown. Scope: group.

    >>> half = np.log(0.5)
    >>> rows = dict(logp=[half, half, half], seq=[0, 0, 1], group=[0, 0], smooth=0.0)
    >>> [own_probability(**rows, by=by)["adv"].values.tolist() for by in ("sequence", "length", "group")]
    [[0.25, 0.5], [0.5, 0.5], [0.5, 1.0]]
    """
    n = len(group)
    total = seg.total(logp, seq, n)
    if by == "length":
        total = total / np.maximum(np.bincount(seq, minlength=n), 1)
    elif by == "group":
        total = total - seg.greatest(total, group, seg.count(group))[group]
    elif by != "sequence":
        raise BadValue(f"own_probability: by must be sequence, length or group, not {by!r}")
    return {"adv": Column("seq", np.exp(total) + smooth)}


FEW = {"groups": 8, "temperature": 1.0}
SHARPENS = mechanism(
    "late:policy/entropy_estimate",
    "self",
    "early:policy/entropy_estimate of self",
    by=0.3,
    relation="<",
    scale="ratio",
    fails_at=0.0,
)

rlsc.claim = Claim(
    (
        # the vote is mostly right: what is likely is true
        premise("early:reward/label", "self", 0.5, by=0.1, fails_at=0.55),
        SHARPENS,
        outcome("accuracy", "self", "start", by=0.1, fails_at=0.95),
        # the probability as the weight, against one weight for all, which alone sharpens nothing; both at temperature 1
        outcome("auc", "weighted", "even", by=0.05, fails_at=0.99),
    ),
    arms={"weighted": ("rlsc", FEW), "even": ("rlsc", {**FEW, "smooth": 10.0})},
    regime="unlabelled_right",
    args={**FEW, "temperature": 0.5},
    settings={"lr": 3e-4, "steps": 20, "eval_every": 3},
    first_seed=300,
    corrected=(
        "on seeds 200 to 207 samples were drawn at temperature 0.5 and weighted and learned at temperature 1, so that "
        "the one weight for all was supervised learning of sharper samples: holds"
    ),
    idea=("main.credit", "main.sampling"),
    because="answers of which the policy is confident are more often right, and a few steps towards its mode suffice",
)
