"""A reward that the program itself wrote as a note, such as the payoff of a game."""

from __future__ import annotations

from ..core import Ref, RolloutGroup, Score, Scores, block


@block
def payoff_from_notes(*, group: RolloutGroup, name: str = "payoff", parts: tuple[str, ...] = ("forfeit",)) -> Scores:
    """The note `name` at a trajectory's end; parts: other notes there that become parts of the score."""
    out: dict[Ref, Score] = {}
    for tree, node, leaf in [(e.tree, t.leaf.node, t.leaf) for e in group.episodes for t in e.trajectories]:
        value = tree.number(node, name)
        error = None if value is not None else f"the program wrote no note {name!r} at this trajectory's end"
        out[leaf] = Score(value, {p: v for p in parts if (v := tree.number(node, p)) is not None}, error=error)
    return {"reward": out}
