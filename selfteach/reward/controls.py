"""Rewards that teach nothing on purpose: controls, by which one sees that a gain comes from the reward."""

from __future__ import annotations

from dataclasses import replace

from ..core import Block, RewardContext, RolloutGroup, Scores, block
from ..core.random_keys import generator
from ..core.scoring import score
from .answer import exact_match


@block
async def shuffled(
    *, groups: list[RolloutGroup], context: RewardContext, deadline: float, reward: Block | None = None
) -> Scores:
    """The values of a reward (exact_match unless given), dealt out anew among all trajectories of a step.

    As many are rewarded as before, and which of them says nothing about what they did.
    """
    found = await score(reward or exact_match(), groups, context, deadline)
    rewards = found.get("reward", {})
    order = generator("shuffled", *(g.key for g in groups)).permutation(len(rewards))
    values = [s.value for s in rewards.values()]
    dealt = {at: replace(s, value=values[i]) for (at, s), i in zip(rewards.items(), order, strict=True)}
    return {**found, "reward": dealt}
