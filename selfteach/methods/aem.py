"""AEM (2605.00425): advantages of turns are scaled by how sure the policy was of them.

A turn of which the policy was sure weighs more than one of which it was not, whatever its sign: failures that it was
sure of raise the entropy while most episodes fail, successes that it was sure of lower it once most succeed.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ..core import (
    Claim,
    Column,
    Method,
    Seq,
    Step,
    Term,
    Token,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..core.blocks import Array
from ..core.random_keys import generator
from ..credit import segments as seg
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.loss_weights import sequence_mean
from ..objective.policy import clipped_ratio
from .base import policy_method

Scope = Literal["group", "trajectory", "batch"]
Direction = Literal["sure", "unsure", "shuffled"]


@method(family="credit", paper="2605.00425", catalogue=175)
def aem(
    groups: int = 16,
    rollouts: int = 8,
    lam: float = 1.0,
    least_range: float = 0.1,
    scope: Scope = "group",
    direction: Direction = "sure",
    clip: float = 0.2,
) -> Method:
    """GRPO whose advantage is multiplied, turn by turn, by a factor that falls with the turn's entropy.

        H_k   = mean entropy of the tokens of turn k
        h_k   = (H_k - min H) / (max H - min H)               over all turns of the group
        a_k   = exp(-lam h_k) / mean exp(-lam h),   1 where max H - min H < least_range
        A_k   = a_k A_i                                       A_i GRPO's advantage of the episode

    The rescaling of the paper's section on entropy modulation. lam = 0 is GRPO. scope: what the entropies are compared
    over, and direction: "unsure" weighs by exp(+lam h) and "shuffled" deals the factors out anew, at random, among the
    turns that are compared; these are the paper's ablations. Known from a description of the paper, not from its code:
    lam = 1 and 0.1 are read there and not confirmed. Factors average 1 over turns, so over tokens only where turns are
    equally long. Theirs also pays -0.1 for an invalid action. The entropy is that of the policy before its update.
    """
    return policy_method(
        credit=(
            per_trajectory(),
            norm(),
            modulate_by_entropy(lam=lam, least_range=least_range, scope=scope, direction=direction),
        ),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean()),
        groups=groups,
        rollouts=rollouts,
    )


@block
def modulate_by_entropy(
    *,
    adv: Seq,
    entropy: Token,
    step: Token,
    seq: Step,
    group: Step,
    batch: Token,
    lam: float = 1.0,
    least_range: float = 0.1,
    scope: Scope = "group",
    direction: Direction = "sure",
) -> dict[str, Column]:
    """Multiply each turn's advantage by a factor that falls with its mean entropy, with the mean 1 over a group.

    Args: adv f64[S]; entropy f64[N]; step i64[N]; seq, group i64[K] of each turn; batch, named so that the batch is not
    split. Returns: adv f64[N]; adv itself at lam = 0. Scope: batch.

    Two turns of the entropies 0 and 1: exp(0) = 1 and exp(-1) = 0.368 over their mean 0.684 are

    >>> given = {"entropy": [0.0, 1.0], "step": [0, 1], "seq": [0, 0], "group": [0, 0], "batch": [0, 0]}
    >>> modulate_by_entropy(adv=[2.0], **given)["adv"].values.round(3)
    array([2.924, 1.076])
    """
    index = {"group": group, "trajectory": seq, "batch": np.zeros(len(seq), np.int64)}[scope]
    factor = entropy_factors(entropy, step, np.asarray(index), lam, least_range, direction)
    of_turn = np.asarray(adv, np.float64)[np.asarray(seq)] * factor
    return {"adv": Column("token", of_turn[np.asarray(step)])}


def entropy_factors(
    entropy: Array, step: Array, index: Array, lam: float, least_range: float, direction: Direction = "sure"
) -> Array:
    """f64[K]: the factor of each turn, of the mean 1 over the turns of an index. entropy, step [N]; index [K]."""
    n = seg.count(index)
    mean = seg.mean(entropy, step, len(index))
    low, high = seg.least(mean, index, n)[index], seg.greatest(mean, index, n)[index]
    is_wide = high - low >= least_range
    share = (mean - low) / np.where(is_wide, high - low, 1.0)
    weight = np.exp((lam if direction == "unsure" else -lam) * share)
    factor = np.where(is_wide, weight / seg.mean(weight, index, n)[index], 1.0)
    if direction == "shuffled":
        length = np.bincount(step, minlength=len(index))
        for i in range(n):
            rows = np.flatnonzero(index == i)
            # keyed by what was sampled, so that steps differ, and not by entropies, whose last bits depend on how
            # a batch is split
            factor[rows] = factor[generator("shuffled factors", i, *length[rows]).permutation(rows)]
    return factor


aem.claim = Claim(
    (
        premise("accuracy", "grpo", "start", by=0.1, fails_at=0.95),  # outcomes can be learned from
        # while most episodes fail the entropy is kept up
        mechanism("early:policy/entropy_estimate", "self", "grpo", by=0.0, fails_at=5.0),
        outcome("accuracy", "self", "grpo", by=0.02, fails_at=0.99),
        outcome("auc", "self", "grpo", by=0.02, fails_at=0.99),
        outcome("auc", "self", "unsure", by=0.02, fails_at=0.99),
    ),
    arms={
        "grpo": "grpo",
        "unsure": ("aem", {"direction": "unsure"}),
        "shuffled": ("aem", {"direction": "shuffled"}),
    },
    regime="turns",
    idea=("main.credit",),
    because="a turn of which the policy is sure moves the entropy down where it did well and up where it did not, so"
    " that it explores while it fails and settles once it succeeds",
)
