"""Where every sampled token went: learned, or dropped for a counted reason. sampled = learned + the sum of dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ..core.batch import Example
from ..core.part import Unit
from ..core.places import Places, rewards, unscored
from ..core.task import Ref
from ..core.tree import Episode, Group


def account(groups: Sequence[Group], examples: Sequence[Example], later: Mapping[str, Collection[str]] | None = None) -> dict[str, int]:
    """Count the distinct sampled tokens of the groups by what became of them.

    A token is a place in an episode's arena that the policy chose; one that several examples learn counts once, since it was sampled
    once. Examples of other episodes (replay) add nothing. later: reason -> names of examples that were dropped after they were made,
    as by a `keep` column. A token is counted under the first of these that holds:

        learned            an example that stayed learns it
        dropped/<reason>   an example that was dropped later learns it
        dropped/masked:x   it is in an example, but inside a span x that is context only
        dropped/context    it is in an example as context, outside any span (an earlier turn, say)
        dropped/uncomposed a trajectory that learns passes it, scored, but no composer took it (a middling answer, in pairs)
        dropped/unscored   only trajectories without a verdict pass it
        dropped/unlearned  no trajectory that learns passes it
        dropped/failed     the same, in an episode whose program raised

    Returns: {"sampled": n, "learned": n, "dropped/...": n ...}, reasons that occur.
    """
    gone = {name: reason for reason, names in (later or {}).items() for name in names}
    places, unit = rewards(groups)
    counts: Counter[str] = Counter(sampled=0, learned=0)
    by_episode: dict[str, list[Example]] = {}
    for example in examples:
        for episode in dict.fromkeys(s.source.episode for s in example.parts if isinstance(s.source, Ref)):
            by_episode.setdefault(episode, []).append(example)
    for episode in {e.id: e for g in groups for e in g.episodes}.values():
        fate = _of_trajectories(episode, places, unit)
        for example in by_episode.get(episode.id, ()):
            _of_example(fate, episode, example, gone.get(example.name))
        chosen: list[str] = fate[episode.tree.chosen].tolist()
        counts["sampled"] += len(chosen)
        for reason, n in Counter(chosen).items():
            counts["learned" if reason == _LEARNED else "dropped/" + reason.split(" ", 1)[1]] += n
    return dict(counts)


_LEARNED = "6 learned"  # fates sort by their digit, so that the better of two is the larger


def _of_trajectories(episode: Episode, places: Places, unit: Unit) -> np.ndarray:
    fate = np.full(len(episode.tree), "0 failed" if episode.status == "error" else "0 unlearned", object)
    for t in episode.trajectories:
        if t.learn is not None:
            at = np.concatenate([episode.tree.places(leaf.node, leaf.offset) for leaf in (*t.before, t.leaf)])
            missing = unscored(episode, t, places, unit)
            fate[at] = np.maximum(fate[at], "1 unscored" if missing else "2 uncomposed")
    return fate


def _of_example(fate: np.ndarray, episode: Episode, example: Example, reason: str | None) -> None:
    tree = episode.tree
    names = np.array(["3 context", *(f"4 masked:{s}" for s in tree.spans[1:])], object)
    for source, learn, start, stop, _ in example.parts:
        if isinstance(source, Ref) and source.episode == episode.id:
            at = np.arange(tree.begin[source.node], tree.stop(source.node))[start:stop]
            better = names[tree.span[at]] if learn is None else _LEARNED if reason is None else f"5 {reason}"
            fate[at] = np.maximum(fate[at], better)
