"""TruthRL."""

from __future__ import annotations

from ...core import Check, Claim, Method, method
from ...reward.answer import truthful
from ...rollout.search import self_search
from ..objective.grpo import grpo


@method(
    family="reward",
    paper="2509.25760",
    catalogue=336,
    claim=Claim(
        (
            Check("late:reward/wrong", "self", "binary", by=0.25, relation="<", scale="ratio"),
            Check("late:reward/abstained", "self", "binary", by=0.05),
            Check("late:reward/right", "self", "binary", by=-0.02),
            Check("accuracy", "self", "binary", by=-0.02),
        ),
        arms={"binary": ("truthrl", {"abstained": -1.0})},
        task="atlas",
        knobs={"abstain": 0.1},
        steps=40,
        because="where a guess and an abstention are worth the same, guessing is free; where a guess costs, it is kept for what is known",
    ),
)
def truthrl(groups: int = 24, rollouts: int = 8, abstained: float = 0.0, wrong: float = -1.0, beta: float = 0.001) -> Method:
    """GRPO with a reward of three values: right, "I don't know", wrong.

        R = 1 right, 0 abstained, -1 wrong        so in {wrong, abstained} abstaining is the better one, in {right, abstained} answering is

    Wei et al. 2025: G = 8, beta 0.001, the group's mean and standard deviation as in GRPO. abstained=-1 is their binary reward. What is
    right, abstained and wrong is logged as reward/right, reward/abstained, reward/wrong, for questions of training; the paper's
    truthfulness is their reward itself, accuracy minus hallucinations. Where the policy is right less than half of the time it knows best to
    abstain altogether, so it must know something to begin with. Answers come from the policy's own memory, in the tags of SSRL.
    """
    return grpo(groups=groups, rollouts=rollouts, beta=beta).but(
        programs={"main": self_search()}, reward=(truthful(abstained=abstained, wrong=wrong),)
    )
