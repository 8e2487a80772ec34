"""TTRL, test-time reinforcement learning (Zuo et al. 2025, arXiv 2504.16084).

RL on the test questions themselves, without labels: the majority answer of a group is the pseudo-label.

    y_maj = majority(answer_1 .. answer_votes)
    r_i   = 1[answer_i = y_maj]
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..core import (
    Claim,
    Column,
    Method,
    Sampling,
    Seq,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..curriculum.select import pool
from ..reward.answer import exact_match
from ..reward.vote import majority_vote
from .grpo import grpo


@method(family="selfreward", paper="2504.16084", catalogue=236)
def ttrl(
    groups: int = 16,
    votes: int = 16,
    keep: int = 8,
    questions: int = 400,
    temperature: float = 1.0,
    labels: bool = False,
) -> Method:
    """Test-time RL: GRPO on the test questions, with the majority answer of each group as the label.

        r_i = 1[answer_i = majority(answer_1 .. answer_votes)],   GRPO on the first `keep` of them

    Zuo et al. 2025, sections 2.2 and 3.1, with 64 votes of which 32 are kept (here 16 and 8); the released scripts
    sample at temperature 1 and test at 0.6. Their step (verl/examples/ttrl/aime.sh) is 8 updates, one for each of its
    questions, with a KL penalty of 0.001, and an empty answer votes like any other; here a step is one update without a
    KL penalty, and a sample without an answer has no vote. No label is part of the reward: they are read for the
    metrics reward/label (whether the majority is right), reward/hit (whether the reward agrees with the label) and
    reward/right.
    labels=True: the labels as the reward on the same questions, the upper bound that the method is compared with.
    """
    return grpo(groups=groups, rollouts=votes).replace(
        select=pool(size=questions, held_out=True),
        reward=(exact_match() if labels else majority_vote(metric_judge=exact_match()),),
        credit=(per_trajectory(), keep_first(n=keep), norm()),
        sampling=Sampling(temperature=temperature),
    )


@block
def keep_first(*, group: Seq, n: int = 8) -> dict[str, Column]:
    """Keep the first `n` sequences of each group; the others only vote and are not learned (section 3.1).

    Put it before the baseline, which is then that of the sequences kept. Args: group i64[S]. Returns: keep f64[S].

    >>> keep_first(group=[0, 1, 0, 0], n=2)["keep"].values
    array([1., 1., 1., 0.])
    """
    seen: Counter[int] = Counter()
    keep = np.ones(len(group))
    for i, g in enumerate(np.asarray(group).tolist()):
        keep[i] = seen[g] < n
        seen[g] += 1
    return {"keep": Column("seq", keep)}


ttrl.claim = Claim(
    (
        # a vote is more often right than an answer, and far from always
        premise("early:reward/label", "self", "accuracy of start", by=0.1, fails_at=0.9),
        premise("early:reward/label", "self", 0.9, relation="<", by=0.0, fails_at=0.95),
        # the reward agrees with the label that it does not know, and where a vote is wrong, too: most answers are wrong
        # as well, and differ from it
        mechanism("early:reward/hit", "self", 0.9, by=0.0, fails_at=0.8),
        mechanism("early:reward/hit", "self", "early:reward/label of self", by=0.1, fails_at=0.95),
        # no label, and better than the vote of as many answers that it began with
        outcome("accuracy", "self", "maj@16 of start", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "labelled", by=0.05, relation="~", fails_at=0.5),
    ),
    arms={"labelled": ("ttrl", {"labels": True})},
    regime="unlabelled_half",
    settings={"final_eval_k": 16, "final_eval_pass_at_k_tasks": 400},  # a vote of as many answers as in training
    first_seed=300,
    corrected=(
        "in unlabelled_right, seeds 200 to 207, nearly all votes of sixteen were right from the start, so that they "
        "were labels, and the vote that was to be passed was one of eight: holds"
    ),
    idea=("main.reward",),
    because="the majority is more often right than an answer, a reward by it is right even more often, and the vote "
    "improves with the policy",
)
