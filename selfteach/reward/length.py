"""Rewards for length: a bonus for right answers within a target, which is given or follows what the policy can do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import BadValue, Episode, Group, Part, Ref, Score, Scores, Trajectory, block, remembers
from ..core.scoring import score

CLASSES = ("hard", "medium", "easy")


def _first() -> dict[str, Any]:
    return {"steps": 0, "lengths": {c: [] for c in CLASSES}, "targets": dict.fromkeys(CLASSES)}


@block
@remembers(_first)
async def short_enough(
    *,
    groups: Sequence[Group],
    cast: Any,
    deadline: float,
    state: dict[str, Any],
    reward: Part | None = None,
    bonus: float = 0.5,
    target: int | None = None,
    every: int = 20,
    least: int = 8,
    grid: int = 4,
    explore: bool = False,
    right: float = 1.0,
) -> tuple[Scores, dict[str, Any]]:
    """A reward, and a bonus for right answers of at most L tokens (LASER, LASER-D and LASER-DE; Liu et al. 2025, 2505.15612).

        R = C + bonus [right][length <= L(d)]  (+ bonus [wrong][length > L(d)] with `explore`: LASER-DE)

    target   L, the same for all and always (LASER); None: L(d) for each difficulty class d of `difficulty`, set anew every `every` steps
             by `adapted` from the right answers drawn since the last time (those of this step included), on `least`, `least + grid`, ...
    right    a reward of this much is a right answer

    Until a class has had a right answer, all its right answers have the bonus. Length counts tokens that the policy chose. Parts: short
    (has the bonus) and target/<class>, besides those of the reward. Unknown stays unknown.
    """
    if reward is None:
        raise BadValue("short_enough needs reward=, which says what is right")
    if every < 1 or grid < 1:
        raise BadValue(f"short_enough: every and grid must be at least 1, not {every} and {grid}")
    found = (await score(reward, groups, cast, deadline)).get("reward", {})
    drawn = {t.leaf: tokens_of(e, t) for g in groups for e in g.episodes for t in e.trajectories if t.leaf in found}
    kinds: dict[Ref, str] = {}
    rollouts = 1
    lengths: dict[str, list[int]] = {c: list(state["lengths"][c]) for c in CLASSES}
    for at in (_of_group(g, found) for g in groups):
        good = [a for a in at if (found[a].value or 0.0) >= right]
        kind = difficulty(len(good) / len(at)) if at else CLASSES[0]
        kinds |= dict.fromkeys(at, kind)
        lengths[kind] += [drawn[a] for a in good]
        rollouts = max(rollouts, len(at))
    targets: dict[str, int | None] = state["targets"]
    if state["steps"] % every == 0:
        targets = {c: adapted(lengths[c], fewest_right(c, rollouts), least, grid) for c in CLASSES}
        lengths = {c: [] for c in CLASSES}
    limits: dict[str, int | None] = targets if target is None else dict.fromkeys(CLASSES, target)

    def paid(at: Ref, have: Score) -> Score:
        if have.value is None:
            return have
        limit = limits[kinds[at]]
        short = limit is None or drawn[at] <= limit
        extra = bonus * (short if have.value >= right else explore and not short)
        told = {} if limit is None else {f"target/{kinds[at]}": float(limit)}
        return Score(have.value + extra, {**have.parts, "short": float(short and have.value >= right), **told}, have.why)

    return {"reward": {at: paid(at, s) for at, s in found.items()}}, {"steps": state["steps"] + 1, "lengths": lengths, "targets": targets}


def difficulty(accuracy: float) -> str:
    """The class of a prompt by the share of its rollouts that are right: easy from 2/3 on, medium from 1/3 on, else hard."""
    return CLASSES[(accuracy >= 1 / 3) + (accuracy >= 2 / 3)]


def fewest_right(kind: str, rollouts: int) -> int:
    """The least number of right answers that a prompt of a class has among so many rollouts, by the class's lower bound; at least 1."""
    return max(1, CLASSES.index(kind) * rollouts // 3)


def adapted(lengths: Sequence[int], right: int, least: int, grid: int) -> int | None:
    """The smallest target at which one right answer is still expected of a prompt; None without any length.

        min l on the grid with P(length <= l) * right >= 1        P over the lengths of right answers; `right` of them a prompt at the least

    >>> adapted([10, 20, 30, 40], 2, 8, 4)  # half of them must be within it: 20; the grid is 8, 12, 16, 20
    20
    """
    if not lengths:
        return None
    needed = sorted(lengths)[math.ceil(len(lengths) / right) - 1]
    return least + grid * max(0, math.ceil((needed - least) / grid))


def tokens_of(episode: Episode, trajectory: Trajectory) -> int:
    """How many tokens of a trajectory the policy chose."""
    tree = episode.tree
    places = [tree.places(leaf.node, leaf.offset) for leaf in (*trajectory.before, trajectory.leaf)]
    return int(tree.chosen[np.unique(np.concatenate(places))].sum())


def _of_group(group: Group, found: dict[Ref, Score]) -> list[Ref]:
    """The places of a group with a known reward."""
    leaves = dict.fromkeys(t.leaf for e in group.episodes for t in e.trajectories)
    return [at for at in leaves if at in found and found[at].value is not None]
