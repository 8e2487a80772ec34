"""Rewards that teach nothing on purpose: controls, by which one sees that a gain comes from the reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..core import Block, RewardContext, RolloutGroup, Scores, block, stateful
from ..core.blocks import initial_state
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
    return _dealt(await score(reward or exact_match(), groups, context, deadline), groups)


@block
@stateful(lambda: {"inner": {}})
async def shuffled_stateful(
    *,
    groups: list[RolloutGroup],
    context: RewardContext,
    deadline: float,
    state: dict[str, Any],
    reward: Block | None = None,
) -> tuple[Scores, dict[str, Any]]:
    """As `shuffled`, of a reward that is stateful: its state goes on as if its values were not dealt out anew.

    State: that of the reward.
    """
    inner = reward or exact_match()
    kept = [state["inner"] or initial_state(inner)]
    found = await score(inner, groups, context, deadline, state=kept)
    return _dealt(found, groups), {"inner": kept[0]}


def _dealt(found: Scores, groups: Sequence[RolloutGroup]) -> Scores:
    rewards = found.get("reward", {})
    order = generator("shuffled", *(g.key for g in groups)).permutation(len(rewards))
    values = [s.value for s in rewards.values()]
    dealt = {at: replace(s, value=values[i]) for (at, s), i in zip(rewards.items(), order, strict=True)}
    return {**found, "reward": dealt}
