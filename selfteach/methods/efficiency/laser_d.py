"""LASER, LASER-D and LASER-DE."""

from __future__ import annotations

from ...core import Check, Claim, Method, method
from ...reward.answer import exact_match
from ...reward.length import short_enough
from ..objective.grpo import grpo


@method(
    family="efficiency",
    paper="2505.15612",
    catalogue=160,
    claim=Claim(
        (
            # the paper's is 0.4 to 0.6; here a terse answer is but a third shorter than the mixture that the policy begins with
            Check("length", "self", "grpo", by=0.20, relation="<", scale="ratio"),
            Check("accuracy", "self", "grpo", by=-0.01),
            Check("accuracy", "self", "fixed", by=0.0),
            Check("length", "self", "fixed", by=0.0, relation="<", scale="ratio"),
        ),
        arms={"grpo": "grpo", "fixed": ("laser_d", {"target": 24})},
        task="chain_sum",
        steps=40,
        because="a bonus for what is short enough shortens without a price on what must be long, and the policy itself says what is short enough",
    ),
)
def laser_d(
    groups: int = 16,
    rollouts: int = 8,
    bonus: float = 0.5,
    target: int | None = None,
    every: int = 5,
    least: int = 8,
    grid: int = 4,
    explore: bool = False,
    beta: float = 0.0,
) -> Method:
    """A bonus for right answers within a target length, which each difficulty class has of its own and which follows the policy.

        R = 1[right] + bonus 1[right] 1[length <= L(d)]        L(d) = min l with P_d(length <= l) |C_d| >= 1

    Liu et al. 2025 and the released code: three classes by the group's accuracy (bounds 1/3 and 2/3), |C_d| the least
    number of right answers of a prompt of the class, the bonus 0.5; every 20 steps there, 5 in runs as short as here. `target` is LASER
    (one length for all), `explore` LASER-DE (the bonus for wrong answers beyond L(d); the code's check for repetition is left out).
    Chosen: the lengths are those of the training rollouts since the last time, not of 500 prompts sampled beside them; a wrong answer is
    worth 0 (the code: -0.5); the KL (`beta`, 0.001 in the code) is off, and the clip as in `grpo`: with one update a batch none is in force.
    """
    reward = short_enough(reward=exact_match(), bonus=bonus, target=target, every=every, least=least, grid=grid, explore=explore)
    return grpo(groups=groups, rollouts=rollouts, beta=beta).but(reward=(reward,))
