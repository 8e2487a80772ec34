"""RLSC."""

from __future__ import annotations

from typing import Literal

from ...core import Check, Claim, Method, Sampling, Term, method
from ...credit.compose import each
from ...credit.confidence import own_probability
from ...objective.likelihood import weighted_nll
from ...objective.weigh import sequence_sum
from ...reward.answer import exact_match
from ...reward.vote import majority_vote
from ..objective.grpo import policy_method


@method(
    family="selfreward",
    paper="2506.06395",
    catalogue=279,
    claim=Claim(
        (
            Check("accuracy", "self", "start", by=0.05),
            Check("accuracy", "self", "maj of start", by=-0.02),
            Check("length", "self", "start", by=0.0, relation="<"),
            Check("late:nats", "self", "early:nats of self", by=0.0, relation="<"),
        ),
        task="chain_sum",
        steps=20,
        because="what the policy is sure of is more often right than not, and a few steps towards its mode are enough to say it",
    ),
)
def rlsc(
    groups: int = 8,
    rollouts: int = 16,
    smooth: float = 0.1,
    by: Literal["length", "group", "none"] = "length",
    temperature: float = 0.5,
) -> Method:
    """Self-confidence: the policy's own probability of an answer is the weight of its likelihood, which draws it to its mode.

        loss = -mean_i (p_old(y_i) + smooth) log p(y_i);   its aim F(p) = E_{y ~ p} p(y), the chance that two samples agree

    Li et al. 2025, equations 4 to 7 and algorithm 1: 16 samples a question at temperature 0.5, ten or twenty steps in all, no label, no
    reward model, no KL, no clip. Both probabilities are the model's own, at temperature 1. p_old of a long answer underflows, so it is
    taken per token here (by="length": the geometric mean), within its group (over the group's largest) or as it is; the paper does not
    say. log p is summed over the tokens. The reward is looked at only: it is the agreement with the majority.
    """
    return policy_method(
        credit=(each(), own_probability(by=by, smooth=smooth).reading(logp="raw_logp")),
        term=Term(weighted_nll().reading(logp="raw_logp"), weigh=sequence_sum()),
        groups=groups,
        rollouts=rollouts,
    ).but(reward=(majority_vote(judge=exact_match()),), sampling=Sampling(temperature=temperature))
