"""Where every sampled token went: learned, or dropped for a counted reason. sampled = learned + the sum of dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ..core.batch import Example
from ..core.task import Ref
from ..core.tree import Episode, Group

# What can become of a token, worse first: of two fates the later one counts.
FATES = ("failed", "unlearned", "unscored", "uncomposed", "context", "masked", "dropped", "learned")


def account(groups: Sequence[Group], examples: Sequence[Example], gone: Mapping[str, str] | None = None) -> Counter[str]:
    """Count the distinct sampled tokens of some groups by what became of them.

    A token is a place in an episode's arena that the policy chose; one that several examples learn was sampled once and counts once.
    Examples of other episodes (replay) add nothing. gone: example's name -> why it was dropped after it was made.

        learned      an example that stayed learns it
        <reason>     an example that was dropped later learns it
        masked       it is in an example, inside a named span that is context only
        context      it is in an example as context, outside any span (an earlier turn, say)
        uncomposed   a trajectory that learns passes it, scored, but no composer took it
        unscored     only trajectories without a verdict pass it
        unlearned    no trajectory that learns passes it; failed: its episode raised

    Returns: {"sampled": n, "learned": n, reason: n ...}.
    """
    gone = gone or {}
    by_episode: dict[str, list[Example]] = {}
    for example in examples:
        for name in dict.fromkeys(s.source.episode for s in example.parts if isinstance(s.source, Ref)):
            by_episode.setdefault(name, []).append(example)
    counts: Counter[str] = Counter(sampled=0, learned=0)
    for group in groups:
        unscored = {at for places in group.scores.values() for at, s in places.items() if s.value is None}
        for episode in group.episodes:
            fate, why = _of_trajectories(episode, unscored), np.zeros(len(episode.tree), np.int16)
            reasons = [""]
            for example in by_episode.get(episode.id, ()):
                _of_example(fate, why, reasons, episode, example, gone.get(example.name))
            chosen = episode.tree.chosen
            counts["sampled"] += int(chosen.sum())
            for n, reason in zip(*np.unique(fate[chosen].astype(np.int64) * 100 + why[chosen], return_counts=True), strict=True):
                name = FATES[n // 100] if FATES[n // 100] != "dropped" else reasons[n % 100]
                counts[name] += int(reason)
    return counts


def _of_trajectories(episode: Episode, unscored: set[Ref]) -> np.ndarray:
    tree = episode.tree
    fate = np.full(len(tree), FATES.index("failed" if episode.status == "error" else "unlearned"), np.int8)
    for t in episode.trajectories:
        if t.learn is not None:
            at = tree.places(t.leaf.node, t.leaf.offset)
            fate[at] = np.maximum(fate[at], FATES.index("unscored" if t.leaf in unscored else "uncomposed"))
    return fate


def _of_example(fate: np.ndarray, why: np.ndarray, reasons: list[str], episode: Episode, example: Example, reason: str | None) -> None:
    tree = episode.tree
    for source, learn, start, stop in example.parts:
        if not isinstance(source, Ref) or source.episode != episode.id:
            continue
        at = np.arange(tree.begin[source.node], tree.stop(source.node))[start:stop]
        if learn is None:
            new = np.where(tree.span[at] > 0, FATES.index("masked"), FATES.index("context"))
        else:
            new = np.full(len(at), FATES.index("learned" if reason is None else "dropped"))
        better = new > fate[at]
        if learn is not None and reason is not None:
            if reason not in reasons:
                reasons.append(reason)
            why[at[better]] = reasons.index(reason)
        elif learn is not None:
            why[at[better]] = 0
        fate[at] = np.maximum(fate[at], new)
