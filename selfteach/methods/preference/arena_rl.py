"""ArenaRL."""

from __future__ import annotations

from typing import Literal

from ...core import Check, Claim, Method, method
from ...reward.compared import tournament
from ...reward.written import preferred_by
from ..objective.grpo import grpo


@method(
    family="preference",
    paper="2601.06487",
    catalogue=170,
    claim=Claim(
        (
            Check("score", "self", "pointwise", by=0.1, scale="ratio"),
            Check("score", "self", "round_robin", by=-0.03),
            Check("mean:reward/comparisons", "self", "round_robin", by=0.4, relation="<", scale="ratio"),
        ),
        arms={"pointwise": ("pointwise", {"judge": "coarse"}), "round_robin": ("arena_rl", {"topology": "round_robin"})},
        task="preference",
        steps=40,
        because="marks of single answers run together as all become good; meeting each other they still differ, and a bracket needs few",
    ),
)
def arena_rl(
    groups: int = 16, rollouts: int = 8, noise: float = 0.15, topology: Literal["elimination", "round_robin", "swiss"] = "elimination"
) -> Method:
    """A tournament ranks the answers of a group: seeds by meetings with an anchor, single elimination, advantages from the final places.

        r = 1 - k / (n - 1) for place k        A = (r - mean) / std, then GRPO's clip        2 (n - 1) comparisons a group

    ArenaRL (2026), as in its released code. Chosen here: the anchor is the group's first sample (the paper decodes it greedily); byes fall to
    the best seeds (the code closes the bracket up instead); the judge is the task's, who says by how much (scale `noise`), as theirs does.
    """
    return grpo(groups=groups, rollouts=rollouts).but(reward=(tournament(judge=preferred_by(noise=noise), topology=topology),))
