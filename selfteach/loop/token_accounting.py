"""The account of every sampled token: learned, or dropped for a counted reason. sampled = learned + dropped."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum, auto

import numpy as np

from ..core.batch import Example
from ..core.blocks import Unit
from ..core.score_places import Places, rewards, unscored
from ..core.task import Ref
from ..core.tree import Episode, RolloutGroup


def account(
    groups: Sequence[RolloutGroup], examples: Sequence[Example], later: Mapping[str, Collection[str]] | None = None
) -> dict[str, int]:
    """Count the distinct sampled tokens of the groups by what became of them.

    A token is a place in an episode's tree under the action mask; one that several examples learn counts once, since
    it was sampled once. Examples of other episodes (replay) add nothing. later: reason -> names of examples that were
    dropped after they were made, as by a `keep` column. A token is counted under the first of these that holds:

        learned            an example that stayed learns it
        dropped/<reason>   an example that was dropped later learns it
        dropped/masked:x   it is in an example, but inside a span x that is context only
        dropped/context    it is in an example as context, outside any span (an earlier turn, say)
        dropped/uncomposed a trajectory that learns passes it, scored, but no composer took it (a middling answer, in
        pairs)
        dropped/unscored   only trajectories without a verdict pass it
        dropped/unlearned  no trajectory that learns passes it
        dropped/failed     the same, in an episode whose program raised

    Returns: {"sampled": n, "learned": n, "dropped/...": n ...}, reasons that occur.
    """
    reason_of = {name: reason for reason, names in (later or {}).items() for name in names}
    episodes = {e.id: e for g in groups for e in g.episodes}
    spans = {span for e in episodes.values() for span in e.tree.spans[1:]}
    rank = _ranked(spans, set(later or {}))
    places, unit = rewards(groups)
    by_episode: dict[str, list[Example]] = {}
    for example in examples:
        for episode in dict.fromkeys(s.source.episode for s in example.segments if isinstance(s.source, Ref)):
            by_episode.setdefault(episode, []).append(example)
    fates = np.zeros(sum(len(e.tree) for e in episodes.values()), np.int64)  # the rank of every token
    masks, begin = [np.zeros(0, bool)], 0
    for episode in episodes.values():
        own = fates[begin : begin + len(episode.tree)]
        _of_trajectories(own, episode, places, unit, rank)
        for example in by_episode.get(episode.id, ()):
            _of_example(own, episode, example, reason_of.get(example.name), rank)
        masks.append(episode.tree.action_mask)
        begin += len(own)
    count = np.bincount(fates[np.concatenate(masks)], minlength=len(rank))
    dropped = {f"dropped/{reason}": int(count[i]) for (fate, reason), i in rank.items() if fate < Fate.LEARNED}
    return {
        "sampled": int(count.sum()),
        "learned": int(count[rank[Fate.LEARNED, ""]]),
        **{name: n for name, n in dropped.items() if n},
    }


class Fate(IntEnum):
    """What became of a sampled token, from worst to best; of several, the best holds."""

    UNLEARNED = auto()
    UNSCORED = auto()
    UNCOMPOSED = auto()
    CONTEXT = auto()
    MASKED = auto()
    DROPPED = auto()
    LEARNED = auto()


Ranks = dict[tuple[Fate, str], int]  # (fate, reason) -> its place among all, the better the larger


def _ranked(spans: set[str], later: set[str]) -> Ranks:
    fates = [(Fate.UNLEARNED, "failed"), (Fate.UNLEARNED, "unlearned"), (Fate.LEARNED, "")]
    fates += [(Fate.UNSCORED, "unscored"), (Fate.UNCOMPOSED, "uncomposed"), (Fate.CONTEXT, "context")]
    fates += [(Fate.MASKED, f"masked:{span}") for span in spans] + [(Fate.DROPPED, reason) for reason in later]
    return {fate: i for i, fate in enumerate(sorted(fates))}


def _of_trajectories(fates: np.ndarray, episode: Episode, places: Places, unit: Unit, rank: Ranks) -> None:
    """Set the ranks of an episode's tokens, i64[tokens], by the trajectories that pass them."""
    tree = episode.tree
    fates[:] = rank[Fate.UNLEARNED, "failed" if episode.status == "error" else "unlearned"]
    for t in episode.trajectories:
        if t.learn is not None:
            missing = unscored(episode, t, places, unit)
            better = rank[(Fate.UNSCORED, "unscored") if missing else (Fate.UNCOMPOSED, "uncomposed")]
            for leaf in (*t.before, t.leaf):
                for node, upto in tree.path(leaf.node, leaf.offset):
                    part = fates[tree.begin[node] : tree.begin[node] + upto]
                    np.maximum(part, better, out=part)


def _of_example(fates: np.ndarray, episode: Episode, example: Example, reason: str | None, rank: Ranks) -> None:
    """Raise the ranks of the tokens that an example holds."""
    tree = episode.tree
    context = [rank[Fate.CONTEXT, "context"], *(rank[Fate.MASKED, f"masked:{s}"] for s in tree.spans[1:])]
    learned = rank[(Fate.LEARNED, "") if reason is None else (Fate.DROPPED, reason)]
    for source, learn, start, stop, _ in example.segments:
        if isinstance(source, Ref) and source.episode == episode.id:
            node = slice(tree.begin[source.node], tree.stop(source.node))
            part, better = fates[node][start:stop], learned
            if learn is None:
                better = context[0] if len(context) == 1 else np.array(context)[tree.span[node][start:stop]]
            np.maximum(part, better, out=part)
