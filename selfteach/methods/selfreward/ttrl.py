"""TTRL."""

from __future__ import annotations

from ...core import Check, Claim, Method, Sampling, method
from ...credit.baseline import norm
from ...credit.compose import each
from ...credit.keep import keep_first
from ...curriculum.select import pool
from ...reward.answer import exact_match
from ...reward.vote import majority_vote
from ..objective.grpo import grpo


@method(
    family="selfreward",
    paper="2504.16084",
    catalogue=236,
    claim=Claim(
        (
            Check("accuracy", "self", "start", by=0.05),
            Check("accuracy", "self", "maj of start", by=-0.01),
            Check("accuracy", "self", "labelled", by=-0.02),
            Check("mean:reward/hit", "self", "mean:reward/label of self", by=0.0),
        ),
        arms={"labelled": ("ttrl", {"labels": True})},
        task="chain_sum",
        steps=40,
        because="a wrong majority still pays the many other wrong answers what they deserve, and the vote gets better with the policy",
    ),
)
def ttrl(groups: int = 16, votes: int = 16, keep: int = 8, questions: int = 400, temperature: float = 0.6, labels: bool = False) -> Method:
    """Test-time RL: learn on the test questions themselves, with the majority answer of a group in the place of the label.

        r_i = 1[answer_i = majority(answer_1 .. answer_votes)],  GRPO on the first `keep` of them

    Zuo et al. 2025, sections 2.2 and 3.1, with 64 votes at temperature 0.6 of which 32 are kept. What is paid is the vote alone; the
    labels are read for the figures reward/label (is the majority right), reward/hit (does the reward say what the label would) and
    reward/right. labels=True pays for being right instead, on the same questions: the ceiling that the method is measured against.
    """
    return grpo(groups=groups, rollouts=votes).but(
        select=pool(size=questions, held_out=True),
        reward=(exact_match() if labels else majority_vote(judge=exact_match()),),
        credit=(each(), keep_first(most=keep), norm()),
        sampling=Sampling(temperature=temperature),
    )
