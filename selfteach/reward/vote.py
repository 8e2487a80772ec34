"""Rewards without labels: the answer that most samples agree on stands in for the truth.

A `judge` that knows the truth is asked for the figures alone (Score.parts), never for the reward:
    right  what the judge says of the answer      label  1 where it would call the voted answer right
    hit    1 where the reward says what the judge says      share  of the samples that gave the voted answer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..core import Group, Part, Score, Scores, block
from ..core.scoring import score
from ..core.votes import canonical, majority

Ties = Literal["first", "none"]


@block
async def majority_vote(*, group: Group, cast: Any, deadline: float, judge: Part | None = None, ties: Ties = "first") -> Scores:
    """1 if the answer is the group's most frequent one, else 0 (TTRL, 2504.16084, section 2.2). A sample without an answer has no vote.

    ties  of answers with as many votes the earliest is taken, or none, and nobody is paid
    """
    truth = await _judged(judge, [group], cast, deadline)
    return {"reward": _paid(group, *majority(_answers(group), ties=ties), truth, _right([group], truth))}


@block
async def cross_vote(*, groups: Sequence[Group], cast: Any, deadline: float, judge: Part | None = None, ties: Ties = "none") -> Scores:
    """1 if the answer is the one most frequent among the samples of the same question in its other wordings (Co-Reward, 2508.00410, eq. 4).

    Questions are the same whose tasks' tag `same_as` names the same task, or the task itself. One that was asked in no other wording is
    voted on among its own samples. A vote without a winner pays nobody.
    """
    truth = await _judged(judge, groups, cast, deadline)
    asked: dict[str, list[Group]] = {}
    for group in groups:
        asked.setdefault(_question(group), []).append(group)
    out: dict[Any, Score] = {}
    for same in asked.values():
        right = _right(same, truth)
        for group in same:
            others = [a for g in same if g is not group or len(same) == 1 for a in _answers(g)]
            out |= _paid(group, *majority(others, ties=ties), truth, right)
    return {"reward": out}


def _question(group: Group) -> str:
    return str(group.request.task.tags.get("same_as", group.request.task.id))


def _answers(group: Group) -> list[Any]:
    return [e.answer for e in group.episodes]


async def _judged(judge: Part | None, groups: Sequence[Group], cast: Any, deadline: float) -> Mapping[Any, Score]:
    return {} if judge is None else (await score(judge, groups, cast, deadline)).get("reward", {})


def _right(groups: Sequence[Group], truth: Mapping[Any, Score]) -> dict[str, bool]:
    """Canonical answer -> whether the judge calls it right, of every answer that it was asked about."""
    out: dict[str, bool] = {}
    for episode in (e for g in groups for e in g.episodes):
        name, verdict = canonical(episode.answer), next((truth[t.leaf].value for t in episode.trajectories if t.leaf in truth), None)
        if name is not None and verdict is not None:
            out[name] = out.get(name, False) or verdict >= 1.0  # however it was spelled
    return out


def _paid(group: Group, label: str | None, share: float, truth: Mapping[Any, Score], right: Mapping[str, bool]) -> dict[Any, Score]:
    out: dict[Any, Score] = {}
    for episode in group.episodes:
        for t in (t for t in episode.trajectories if t.learn is not None):
            hit = float(label is not None and canonical(episode.answer) == label)
            parts, known = {"share": share}, truth[t.leaf].value if t.leaf in truth else None
            if known is not None:
                parts |= {"right": known, "hit": float(hit == (known >= 1.0)), "label": float(right.get(label or "", False))}
            out[t.leaf] = Score(hit, parts, "no answer has the most votes" if label is None else f"voted {label}")
    return out
