"""Rewards without labels: the majority answer of the samples is the pseudo-label.

A `metric_judge` that knows the gold answer is used for metrics alone (Score.parts), never for the reward:
    right  the judge's score of the answer
    label  1 where the judge accepts the pseudo-label
    hit    1 where the reward agrees with the judge
    share  the share of the samples that gave the majority answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..core import Block, RewardContext, RolloutGroup, Score, Scores, block
from ..core.answers import canonical, majority
from ..core.scoring import score

Ties = Literal["first", "none"]


@block
async def majority_vote(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    metric_judge: Block | None = None,
    ties: Ties = "first",
) -> Scores:
    """1 if the answer is the group's most frequent one, else 0 (TTRL, 2504.16084, section 2.2).

    A sample without an answer has no vote. ties: of answers with equal votes the earliest is the label, or none is, and
    the reward is 0 for all.
    """
    truth = {} if metric_judge is None else (await score(metric_judge, [group], context, deadline)).get("reward", {})
    return {"reward": vote_scores(group, [group], truth, ties)}


def vote_scores(
    group: RolloutGroup, voters: Sequence[RolloutGroup], truth: Mapping[Any, Score], ties: Ties
) -> dict[Any, Score]:
    """Scores of a group's answers against the majority answer of `voters`, groups on the same question.

    truth: the judge's scores of the answers of all these groups, for the parts; may be empty.
    """
    label, share = majority([e.answer for g in voters for e in g.episodes], ties=ties)
    right = _right_answers([group, *voters], truth)
    why = "no answer has the most votes" if label is None else f"voted {label}"
    out: dict[Any, Score] = {}
    for episode in group.episodes:
        for t in episode.learned:
            hit = float(label is not None and canonical(episode.answer) == label)
            parts, known = {"share": share}, truth[t.leaf].value if t.leaf in truth else None
            if known is not None:
                parts |= {"right": known, "hit": float(hit == (known >= 1.0)), "label": float(label in right)}
            out[t.leaf] = Score(hit, parts, why)
    return out


def _right_answers(groups: Sequence[RolloutGroup], truth: Mapping[Any, Score]) -> set[str | None]:
    """The canonical forms of the answers that the judge accepts."""
    return {
        canonical(e.answer)
        for g in groups
        for e in g.episodes
        for verdict in [next((truth[t.leaf].value for t in e.trajectories if t.leaf in truth), None)]
        if verdict is not None and verdict >= 1.0
    } - {None}
