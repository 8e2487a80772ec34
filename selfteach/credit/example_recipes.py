"""What an example of a trajectory is made of: segments of its path's nodes, columns of its scores, labels."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ..core import BadValue, Episode, Ref, RolloutGroup, Segment, Trajectory, Unit
from ..core.score_places import Places, place_of


def has_spans(episode: Episode, trajectory: Trajectory, names: tuple[str, ...]) -> bool:
    """True where a path has tokens of these spans, so that without them its tokens have another context."""
    tree = episode.tree
    spans = [i for i, s in enumerate(tree.spans) if s in names]
    return bool(np.isin(tree.span[tree.places(trajectory.leaf.node, trajectory.leaf.offset)], spans).any())


def labels(group: RolloutGroup, role: str) -> dict[str, str]:
    """The string columns of a sequence: its task, the task's category, and a role."""
    task = group.request.task
    return {"task": task.id, "category": str(task.tags.get("category", "")), "role": role}


def segments_of(
    episode: Episode,
    trajectory: Trajectory,
    loss_stream: str | tuple[str, ...],
    mask: tuple[str, ...],
    turns: int | None,
    without: tuple[str, ...] = (),
) -> tuple[tuple[Segment, ...], list[tuple[int, np.ndarray]]]:
    """The path as segments, and for each node once (node, bool per token of it on the path: whether it is learned).

    A path that was re-rendered on the way is several texts, one per branch; a token is learned in the first text that
    contains it.
    """
    tree = episode.tree
    action_mask, span = tree.action_mask, tree.span
    learnable = np.array([s not in mask and s not in without for s in tree.spans])[span] & action_mask
    absent = np.array([s in without for s in tree.spans])[span]
    texts: list[list[tuple[int, np.ndarray]]] = []
    for leaf in (*trajectory.before, trajectory.leaf):
        text: list[tuple[int, np.ndarray]] = []
        for node, upto in tree.path(leaf.node, leaf.offset):
            at = slice(tree.begin[node], tree.begin[node] + upto)
            text.append((node, learnable[at].copy()))
            learnable[at] = False  # in later texts
        texts.append(text)
    sampled_nodes = list(dict.fromkeys(node for text in texts for node, rows in text if rows.any()))
    early = set(sampled_nodes[: max(0, len(sampled_nodes) - turns)] if turns is not None else ())
    names = (loss_stream,) if isinstance(loss_stream, str) else loss_stream
    segments: list[Segment] = []
    learned: dict[int, np.ndarray] = {}
    for text in texts:
        first = len(segments)
        text = [(node, np.zeros_like(rows) if node in early else rows) for node, rows in text]
        if len(texts) > 1 and not any(rows.any() for _, rows in text):
            continue
        for node, rows in text:
            label = names[min(sampled_nodes.index(node), len(names) - 1)] if node in sampled_nodes else None
            # Tokens outside the action mask are never learned: a run ends only where an action's learning changes.
            at = slice(tree.begin[node], tree.begin[node] + len(rows))
            runs = _runs(rows, action_mask[at], absent[at])
            segments += [Segment(Ref(episode.id, node), label if on else None, start, stop) for start, stop, on in runs]
            learned.setdefault(node, rows)
        if 0 < first < len(segments):
            segments[first] = segments[first]._replace(fresh=True)
    return tuple(segments), list(learned.items())


def _runs(learned: np.ndarray, action_mask: np.ndarray, removed: np.ndarray) -> list[tuple[int, int, bool]]:
    """(start, stop, whether it is learned) of the longest runs whose actions are all learned, or none of them.

    Runs of removed tokens are left out. Args: bool[n] each.
    """
    if not len(learned):
        return []
    if not removed.any() and ((learned == action_mask).all() or not learned.any()):
        return [(0, len(learned), bool(learned.any()))]  # most nodes: a prompt, a whole turn
    at = np.flatnonzero(action_mask)
    changes = at[1:][learned[at[1:]] != learned[at[:-1]]]
    bounds = sorted({0, *changes.tolist(), *(np.flatnonzero(np.diff(removed)) + 1).tolist(), len(learned)})
    return [(a, z, bool(learned[a:z].any())) for a, z in itertools.pairwise(bounds) if not removed[a]]


def score_column(
    episode: Episode,
    trajectory: Trajectory,
    name: str,
    unit: Unit,
    places: Places,
    learned: list[tuple[int, np.ndarray]],
) -> tuple[Unit, Any] | None:
    """(unit, values) of a score for one example, NaN where there is none; None for a sequence without a score."""
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
