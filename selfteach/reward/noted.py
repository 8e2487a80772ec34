"""Rewards that a program wrote down itself: the payoff of a game."""

from __future__ import annotations

from ..core import Group, Score, Scores, block


@block
def noted(*, group: Group, name: str = "payoff", parts: tuple[str, ...] = ("forfeit",)) -> Scores:
    """The number that the program noted at a trajectory's end under `name`; `parts` are shown beside it."""
    out: dict = {}
    for episode in group.episodes:
        for t in episode.trajectories:
            notes = episode.tree.notes.get(t.leaf.node, {})
            error = None if name in notes else f"the program noted no {name!r} at this trajectory's end"
            out[t.leaf] = Score(notes.get(name), {p: notes[p] for p in parts if p in notes}, error=error)
    return {"reward": out}
