"""Rewards that another round of the step has found: what a reward model thinks of each answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core import Group, Part, Ref, Score, Scores, block
from ..core.scoring import score


@block
async def appraised(*, groups: Sequence[Group], cast: Any, deadline: float, beside: tuple[tuple[str, Part], ...] = ()) -> Scores:
    """The `worth` that an episode about an answer noted (request help `output`), as the answer's reward; unknown where it noted none.

    beside  other rewards of the answers, name -> Part, whose values are shown as parts: a rule's verdict; beside `right`, the truth, also
            `agreed`, whether the worth is on the right side of a half
    The episodes about answers get what they noted, too; they teach nothing.
    """
    worth: dict[Ref, float | None] = {}
    out: dict[Ref, Score] = {}
    for group in (g for g in groups if "output" in g.request.help):
        for t in [t for e in group.episodes for t in e.trajectories]:
            value = next(e for e in group.episodes if e.id == t.leaf.episode).tree.notes.get(t.leaf.node, {}).get("worth")
            out[t.leaf] = Score(value, error=None if value is not None else "its program noted no worth")
            worth[group.request.help["output"]] = value
    answers = [g for g in groups if "output" not in g.request.help]
    shown = {name: (await score(part, answers, cast, deadline))["reward"] for name, part in beside}
    for at in [t.leaf for g in answers for e in g.episodes for t in e.trajectories if t.learn is not None]:
        parts = {name: value for name, found in shown.items() if (value := found[at].value) is not None}
        value = worth.get(at)
        if value is not None and "right" in parts:
            parts["agreed"] = float((value > 0.5) == (parts["right"] >= 1.0))
        error = None if value is not None else "no episode about this answer noted its worth"
        out[at] = Score(value, parts, error=error)
    return {"reward": out}
