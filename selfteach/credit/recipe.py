"""From trajectories to examples: segments of the path's nodes, and the scores that belong to each. Plain helpers of the composers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import BadValue, Episode, Example, Group, Ref, Segment, Trajectory, Unit
from ..core.places import Places, place_of, places_of, unit_of, unscored


def examples(
    groups: Sequence[Group],
    stream: str | tuple[str, ...] | None = None,
    mask: tuple[str, ...] = (),
    member: str | None = "policy",
    roles: tuple[str, ...] = (),
    turns: int | None = None,
    steps: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    tokens: tuple[str, ...] = (),
) -> list[Example]:
    """One Example per closed trajectory that learns and has its verdict, in the order of groups, episodes and closing. See `each`."""
    scores = {name: places_of(groups, name) for name in sorted({*tokens, *(name for g in groups for name in g.scores)})}
    units: dict[str, Unit] = {name: unit_of(groups, places) for name, places in scores.items()}
    for name in steps:
        if units.get(name) == "seq":
            units[name] = "step"
    units |= dict.fromkeys(tokens, "token")
    out: list[Example] = []
    for group, episode, t in [(g, e, t) for g in groups for e in g.episodes for t in e.trajectories]:
        if t.learn is None or (roles and t.role not in roles) or unscored(episode, t, scores.get("reward", {}), units.get("reward", "seq")):
            continue
        parts, learned = _segments(episode, t, stream or t.learn, mask, turns, without)
        given: dict[str, tuple[Unit, Any]] = {"truncated": ("seq", float(t.status in ("length", "limit")))}
        if without and _left_out(episode, t, without):
            given["moved"] = ("seq", 1.0)
        for name, places in scores.items():
            values = _given(episode, t, name, units[name], places, learned)
            if values is not None:
                given[name] = values
        if parts:
            out.append(Example(parts, member or t.role, t.key, f"{episode.id}:{t.leaf.node}", given=given, labels=labels(group, t)))
    return out


def _left_out(episode: Episode, trajectory: Trajectory, without: tuple[str, ...]) -> bool:
    """True where a path has tokens of these spans, so that without them what was drawn stands in another context."""
    tree = episode.tree
    gone = [i for i, s in enumerate(tree.spans) if s in without]
    return bool(np.isin(tree.span[tree.places(trajectory.leaf.node, trajectory.leaf.offset)], gone).any())


def labels(group: Group, trajectory: Trajectory) -> dict[str, str]:
    """What keeps books by name may ask of a sequence: its task, the task's category, the role that spoke."""
    task = group.request.task
    return {"task": task.id, "category": str(task.tags.get("category", "")), "role": trajectory.role}


def _segments(
    episode: Episode,
    trajectory: Trajectory,
    stream: str | tuple[str, ...],
    mask: tuple[str, ...],
    turns: int | None,
    without: tuple[str, ...] = (),
) -> tuple[tuple[Segment, ...], list[tuple[int, np.ndarray]]]:
    """The path as segments, and (node, bool per token of it on the path: is it learned) of each node once.

    A path that was written anew on the way is several texts, one per branch; a token is learned in the first that it stands in.
    """
    tree = episode.tree
    masked = np.array([i for i, s in enumerate(tree.spans) if s in (*mask, *without)], np.int64)
    absent = np.array([i for i, s in enumerate(tree.spans) if s in without], np.int64)
    texts: list[list[tuple[int, np.ndarray]]] = []
    seen = np.zeros(len(tree), bool)
    for leaf in (*trajectory.before, trajectory.leaf):
        path = [(node, slice(tree.begin[node], tree.begin[node] + upto)) for node, upto in tree.path(leaf.node, leaf.offset)]
        texts.append([(node, tree.chosen[at] & ~np.isin(tree.span[at], masked) & ~seen[at]) for node, at in path])
        seen[tree.places(leaf.node, leaf.offset)] = True
    spoken = list(dict.fromkeys(node for text in texts for node, rows in text if rows.any()))
    early = set(spoken[: max(0, len(spoken) - turns)] if turns is not None else ())
    names = (stream,) if isinstance(stream, str) else stream
    parts: list[Segment] = []
    learned: dict[int, np.ndarray] = {}
    for text in texts:
        first = len(parts)
        text = [(node, np.zeros_like(rows) if node in early else rows) for node, rows in text]
        if len(texts) > 1 and not any(rows.any() for _, rows in text):
            continue
        for node, rows in text:
            label = names[min(spoken.index(node), len(names) - 1)] if rows.any() else None
            # Unchosen tokens teach nothing in any segment, so a run ends only where a chosen token's fate changes.
            at = slice(tree.begin[node], tree.begin[node] + len(rows))
            runs = _runs(rows, tree.chosen[at], np.isin(tree.span[at], absent))
            parts += [Segment(Ref(episode.id, node), label if on else None, start, stop) for start, stop, on in runs]
            learned.setdefault(node, rows)
        if 0 < first < len(parts):
            parts[first] = parts[first]._replace(fresh=True)
    return tuple(parts), list(learned.items())


def _runs(rows: np.ndarray, chosen: np.ndarray, gone: np.ndarray) -> list[tuple[int, int, bool]]:
    """(start, stop, learned) of the longest stretches in which all chosen tokens are learned, or none is; without what is gone."""
    if not len(rows):
        return []
    at = np.flatnonzero(chosen)
    turn = at[1:][rows[at[1:]] != rows[at[:-1]]]
    cuts = sorted({0, *turn.tolist(), *(np.flatnonzero(np.diff(gone)) + 1).tolist(), len(rows)})
    return [(a, z, bool(rows[a:z].any())) for a, z in itertools.pairwise(cuts) if not gone[a]]


def _given(
    episode: Episode, trajectory: Trajectory, name: str, unit: Unit, places: Places, learned: list[tuple[int, np.ndarray]]
) -> tuple[Unit, Any] | None:
    """A column's values for one example, NaN where there is none; None where a sequence has no score at all."""
    if unit == "seq":
        node, upto = place_of(episode.tree, trajectory.leaf)
        values = places.get((episode.id, node), {})
        return ("seq", _number(values[upto])) if upto in values else None
    counts = [int(rows.any()) if unit == "step" else int(rows.sum()) for _, rows in learned]
    out = np.full(sum(counts), np.nan)
    before, taken = 0, set[int]()
    for (node, rows), count in zip(learned, counts, strict=True):
        for at, value in places.get((episode.id, node), {}).items():
            if at > len(rows):
                continue
            row = before + (count if unit == "step" else int(rows[:at].sum())) - 1
            if row < 0:  # before the first learned token: no row of this example to hold it
                continue
            if row in taken:
                raise BadValue(f"score {name} of {episode.id}: two scores fall on one {unit} at node {node}")
            taken.add(row)
            out[row] = _number(value)
        before += count
    return unit, out


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
