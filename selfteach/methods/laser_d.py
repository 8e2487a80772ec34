"""LASER, LASER-D and LASER-DE, length-based rewards (Liu et al. 2025, arXiv 2505.15612).

Right answers within a target length have a bonus. The target of each difficulty class d adapts to the policy: the
smallest length within which one right answer is still expected of a prompt of the class.

    R    = 1[right] + bonus 1[right] 1[length <= L(d)]
    L(d) = min l with P_d(length <= l) |C_d| >= 1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from ..core import (
    BadValue,
    Block,
    Claim,
    Method,
    Ref,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.scoring import score
from ..reward.answer import exact_match
from ..reward.length import tokens_of
from .grpo import grpo

CLASSES = ("hard", "medium", "easy")


@method(family="efficiency", paper="2505.15612", catalogue=160)
def laser_d(
    groups: int = 16,
    rollouts: int = 8,
    bonus: float = 0.5,
    target: int | None = None,
    every: int = 5,
    min_target: int = 8,
    target_step: int = 4,
    rounding: Literal["ceil", "floor"] = "ceil",
    explore: bool = False,
    beta: float = 0.0,
) -> Method:
    """A bonus for right answers within a target length, which adapts to the policy for each difficulty class.

        R    = 1[right] + bonus 1[right] 1[length <= L(d)]
        L(d) = min l with P_d(length <= l) |C_d| >= 1

    Liu et al. 2025, sections 5.1 to 5.3, and the released code: three classes by the group's accuracy (bounds 1/3 and
    2/3), P_d over all answers to prompts of the class, wrong ones included, |C_d| the least number of right answers of
    such a prompt (6, 3 and 1 of 8; the released code rounds the bounds down, to 5, 2 and 1: rounding="floor"), the
    bonus 0.5; targets are updated every 20 steps there, every 5 in runs as short as here. `target` is LASER (one length
    for all), `explore` LASER-DE (the bonus for wrong answers beyond L(d); the code's check for repetition is left out).
    Chosen here: the lengths are those of the training rollouts since the last update of the targets, not of 500 prompts
    sampled for it; a wrong answer has reward 0 (the code: -0.5). The code's scripts have a KL penalty of 0.001
    (`beta`, 0 here), an entropy bonus of 0.001, temperature 0.6 and a clip of 0.2 and 0.28; here there is no bonus, and
    the clip is as in `grpo`, which clips nothing with one update per batch.
    """
    reward = length_bonus(
        reward=exact_match(),
        bonus=bonus,
        target=target,
        every=every,
        min_target=min_target,
        target_step=target_step,
        rounding=rounding,
        explore=explore,
    )
    return grpo(groups=groups, rollouts=rollouts, beta=beta).replace(reward=(reward,))


@block
@stateful(lambda: {"steps": 0, "lengths": {c: [] for c in CLASSES}, "targets": dict.fromkeys(CLASSES)})
async def length_bonus(
    *,
    groups: Sequence[RolloutGroup],
    context: RewardContext,
    deadline: float,
    state: dict[str, Any],
    reward: Block | None = None,
    bonus: float = 0.5,
    target: int | None = None,
    every: int = 5,
    min_target: int = 8,
    target_step: int = 4,
    rounding: Literal["ceil", "floor"] = "ceil",
    explore: bool = False,
    right: float = 1.0,
) -> tuple[Scores, dict[str, Any]]:
    """A reward, and a bonus for right answers of at most L tokens.

        R = C + bonus 1[right] 1[length <= L(d)]
              + bonus 1[wrong] 1[length > L(d)]        with `explore` (LASER-DE)

    target   L, the same for all and fixed (LASER); None: L(d) for each class d of `difficulty`, updated every
             `every` steps by `adapted` from all answers sampled since the last update, right or wrong (those of this
             step included), on the grid `min_target`, `min_target + target_step`, ...
    rounding of the least number of right answers of a prompt of a class (`fewest_right`)
    right    an answer is right where the reward C is at least this

    Where there was no prompt of a class since the update before, all its right answers have the bonus until the next,
    as in the released code. Length counts the tokens that the policy sampled. Parts: short (has the bonus) and
    target/<class>, and those of the reward. Unknown stays unknown.
    """
    if reward is None:
        raise BadValue("length_bonus needs reward=, which says what is right")
    if every < 1 or target_step < 1:
        raise BadValue(f"length_bonus: every and target_step must be at least 1, not {every} and {target_step}")
    scores = (await score(reward, groups, context, deadline)).get("reward", {})
    length = {t.leaf: tokens_of(e, t) for g in groups for e in g.episodes for t in e.trajectories if t.leaf in scores}
    kinds: dict[Ref, str] = {}
    answers = [_known(g, scores) for g in groups]
    rollouts = len(max(answers, key=len, default=()))
    lengths: dict[str, list[int]] = {c: list(state["lengths"][c]) for c in CLASSES}
    for at in answers:
        good = [a for a in at if (scores[a].value or 0.0) >= right]
        kind = difficulty(len(good) / len(at)) if at else CLASSES[0]
        kinds |= dict.fromkeys(at, kind)
        lengths[kind] += [length[a] for a in at]
    targets: dict[str, int | None] = state["targets"]
    if state["steps"] % every == 0:
        least = {c: fewest_right(c, rollouts, rounding) for c in CLASSES}
        targets = {c: adapted(lengths[c], least[c], min_target, target_step) for c in CLASSES}
        lengths = {c: [] for c in CLASSES}
    limits: dict[str, int | None] = targets if target is None else dict.fromkeys(CLASSES, target)

    def with_bonus(at: Ref, have: Score) -> Score:
        if have.value is None:
            return have
        limit = limits[kinds[at]]
        short = limit is None or length[at] <= limit
        extra = bonus * (short if have.value >= right else explore and not short)
        shown = {} if limit is None else {f"target/{kinds[at]}": float(limit)}
        return Score(
            have.value + extra, {**have.parts, "short": float(short and have.value >= right), **shown}, have.why
        )

    return {"reward": {at: with_bonus(at, s) for at, s in scores.items()}}, {
        "steps": state["steps"] + 1,
        "lengths": lengths,
        "targets": targets,
    }


def difficulty(accuracy: float) -> str:
    """The class of a prompt by its share of right rollouts: easy from 2/3 on, medium from 1/3 on, else hard."""
    return CLASSES[(accuracy >= 1 / 3) + (accuracy >= 2 / 3)]


def fewest_right(kind: str, rollouts: int, rounding: Literal["ceil", "floor"] = "ceil") -> int:
    """The least number of right answers that a prompt of a class has among so many rollouts, at least 1.

    floor: a class's bound rounded down, as in the released code: fewer than such a prompt has.

    >>> [(fewest_right(kind, 8), fewest_right(kind, 8, "floor")) for kind in ("easy", "medium", "hard")]
    [(6, 5), (3, 2), (1, 1)]
    """
    bound = CLASSES.index(kind) * rollouts
    return max(1, -(-bound // 3) if rounding == "ceil" else bound // 3)


def adapted(lengths: Sequence[int], right: int, min_target: int, target_step: int) -> int | None:
    """The smallest target within which one right answer is expected of a prompt; None without any length.

        min l on the grid with P(length <= l) right >= 1

    P is over the `lengths` of a class's answers, right or wrong; right: the least number of right ones that a prompt
    of it has.

    >>> adapted([10, 20, 30, 40], 2, 8, 4)  # half of them must be within it: 20; the grid is 8, 12, 16, 20
    20
    """
    if not lengths:
        return None
    needed = sorted(lengths)[math.ceil(len(lengths) / right) - 1]
    return min_target + target_step * max(0, math.ceil((needed - min_target) / target_step))


def _known(group: RolloutGroup, scores: dict[Ref, Score]) -> list[Ref]:
    """The places of a group with a known reward."""
    leaves = dict.fromkeys(t.leaf for e in group.episodes for t in e.trajectories)
    return [at for at in leaves if at in scores and scores[at].value is not None]


laser_d.claim = Claim(
    (
        # thirty tokens write every addition once
        premise("length_right", "grpo", 36.0, by=0.0, fails_at=32.0),
        # the target leaves what the baseline does behind
        mechanism(
            "late:reward/target/easy",
            "self",
            "length_right of grpo",
            by=0.1,
            relation="<",
            scale="ratio",
            fails_at=30.0,
        ),
        outcome("length", "self", "grpo", by=0.15, relation="<", scale="ratio", fails_at=30.0),
        outcome("accuracy", "self", "grpo", by=0.03, relation="~", fails_at=0.5),
        # the adaptation: no target has to be known. Two of the paper's fixed ones, half and a quarter of the longest
        # answer (113 tokens), are one that most answers soon are within, and one that no right answer is. (The classes
        # are not tested: all prompts are soon easy here.)
        outcome("length", "self", "half", by=0.1, relation="<", scale="ratio", fails_at=30.0),
        outcome("length", "self", "quarter", by=0.15, relation="<", scale="ratio", fails_at=30.0),
    ),
    arms={"grpo": "grpo", "half": ("laser_d", {"target": 56}), "quarter": ("laser_d", {"target": 28})},
    regime="hesitant",
    first_seed=400,
    corrected=(
        "on seeds 200 to 207 targets were of the lengths of right answers alone, not of all, and of 5, 2 and 1 right "
        "answers of 8 where the paper has 6, 3 and 1; no arm had a fixed target: mechanism not shown. On seeds 300 to "
        "307, in overlong, right answers had two lengths, and the target lay between them from the first step: holds"
    ),
    idea=("main.reward",),
    because="a bonus within a target length shortens right answers without a penalty on those that must be long, and "
    "the target falls as the policy finds shorter ones",
)
