"""SEC: self-evolving curriculum."""

from __future__ import annotations

from ...core import Check, Claim, Method, method
from ...curriculum.arms import frontier_arms
from ..objective.grpo import grpo


@method(
    family="curriculum",
    paper="2505.14970",
    catalogue=137,
    claim=Claim(
        (
            Check("accuracy/terms=8", "self", "grpo", by=0.10, scale="ratio"),
            Check("late:select/difficulty", "self", "early:select/difficulty of self", by=0.0),
            Check("accuracy", "self", "grpo", by=0.0),
        ),
        arms={"grpo": "grpo"},
        task="chain_sum",
        knobs={"terms": (2, 8), "style": "terse"},
        steps=150,  # what is known must have grown for the frontier to move
        because="advantages are largest where half of the answers are right, so a bandit on them asks what is neither known nor out of reach",
    ),
)
def sec(groups: int = 16, rollouts: int = 8, by: str = "difficulty", rate: float = 0.5, temperature: float = 0.5) -> Method:
    """Self-evolving curriculum: which kind of problem comes next is a bandit's choice, whose reward is the mean absolute advantage.

        P(c) = softmax(Q(c) / temperature)        Q(c) <- rate * mean |A| + (1 - rate) * Q(c) for the kinds that were asked

    Chen et al. 2025, section 3. `by`: the tag whose values are the arms. The paper tunes its temperature per task; 0.5 is ours.
    """
    return grpo(groups=groups, rollouts=rollouts).but(select=frontier_arms(by=by, rate=rate, temperature=temperature))
