"""The places of scores (token of a node), and the coarsest unit that can hold a column of them."""

from __future__ import annotations

from collections.abc import Sequence

from .blocks import Unit
from .errors import BadValue
from .task import Ref
from .tree import Episode, RolloutGroup, Trajectory, Tree

Places = dict[
    tuple[str, int], dict[int, float | None]
]  # (episode, node) -> tokens of the node before the place -> value


def rewards(groups: Sequence[RolloutGroup]) -> tuple[Places, Unit]:
    """The places of the groups' `reward`, and the unit that can hold it."""
    places = places_of(groups, "reward")
    return places, unit_of(groups, places)


def unscored(episode: Episode, trajectory: Trajectory, reward: Places, unit: Unit) -> bool:
    """True where the trajectory has a score without a value: at its leaf, or anywhere on its path if rewards are given
    along it.
    """
    node, upto = place_of(episode.tree, trajectory.leaf)
    if unit == "seq":
        return reward.get((episode.id, node), {}).get(upto, 0.0) is None
    path = [
        one
        for leaf in (*trajectory.before, Ref(episode.id, node, upto))
        for one in episode.tree.path(leaf.node, leaf.offset)
    ]
    return any(v is None for n, stop in path for at, v in reward.get((episode.id, n), {}).items() if at <= stop)


def place_of(tree: Tree, ref: Ref) -> tuple[int, int]:
    """(node, tokens of the node before the place)."""
    return ref.node, tree.size(ref.node) if ref.offset < 0 else ref.offset


def places_of(groups: Sequence[RolloutGroup], name: str) -> Places:
    """Where the scores of a name stand, and their values. Raises BadValue for an episode of another group."""
    out: Places = {}
    for group in groups:
        trees = {e.id: e.tree for e in group.episodes}
        for ref, score in group.scores.get(name, {}).items():
            if ref.episode not in trees:
                raise BadValue(f"score {name}: episode {ref.episode} is not in group {group.key}")
            node, at = place_of(trees[ref.episode], ref)
            out.setdefault((ref.episode, node), {})[at] = score.value
    return out


def unit_of(groups: Sequence[RolloutGroup], places: Places) -> Unit:
    """The coarsest unit that can hold every place of a column: seq if all are leaves, step if all others end a node,
    else token.
    """
    episodes = {e.id: e for g in groups for e in g.episodes}
    leaves = {(e.id, *place_of(e.tree, t.leaf)) for e in episodes.values() for t in e.trajectories}
    inner = [(where, at) for where, values in places.items() for at in values if (*where, at) not in leaves]
    if not inner:
        return "seq"
    return "step" if all(at == episodes[episode].tree.size(node) for (episode, node), at in inner) else "token"
