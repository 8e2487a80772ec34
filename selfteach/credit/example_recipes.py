"""From trajectories to examples: segments of the path's nodes, and the scores of each. Helpers of the composers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import BadValue, Episode, Example, Ref, RolloutGroup, Segment, Trajectory, Unit
from ..core.score_places import Places, place_of, places_of, unit_of, unscored


def examples(
    groups: Sequence[RolloutGroup],
    loss_stream: str | tuple[str, ...] | None = None,
    mask: tuple[str, ...] = (),
    model_role: str | None = "policy",
    roles: tuple[str, ...] = (),
    turns: int | None = None,
    steps: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    tokens: tuple[str, ...] = (),
) -> list[Example]:
    """One Example per closed trajectory that is learned and has a reward, in the order of groups and episodes.

    The arguments are those of `per_trajectory`.
    """
    scores = {name: places_of(groups, name) for name in sorted({*tokens, *(name for g in groups for name in g.scores)})}
    units: dict[str, Unit] = {name: unit_of(groups, places) for name, places in scores.items()}
    for name in steps:
        if units.get(name) == "seq":
            units[name] = "step"
    units |= dict.fromkeys(tokens, "token")
    out: list[Example] = []
    for group, episode, t in [(g, e, t) for g in groups for e in g.episodes for t in e.trajectories]:
        if (
            t.learn is None
            or (roles and t.role not in roles)
            or unscored(episode, t, scores.get("reward", {}), units.get("reward", "seq"))
        ):
            continue
        parts, learned = _segments(episode, t, loss_stream or t.learn, mask, turns, without)
        given: dict[str, tuple[Unit, Any]] = {"truncated": ("seq", float(t.status in ("length", "limit")))}
        if without and _has_spans(episode, t, without):
            given["off_context"] = ("seq", 1.0)
        for name, places in scores.items():
            values = _score_column(episode, t, name, units[name], places, learned)
            if values is not None:
                given[name] = values
        if parts:
            out.append(
                Example(
                    parts,
                    model_role or t.role,
                    t.key,
                    f"{episode.id}:{t.leaf.node}",
                    given=given,
                    labels=labels(group, t),
                )
            )
    return out


def _has_spans(episode: Episode, trajectory: Trajectory, names: tuple[str, ...]) -> bool:
    """True where a path has tokens of these spans, so that without them its tokens have another context."""
    tree = episode.tree
    spans = [i for i, s in enumerate(tree.spans) if s in names]
    return bool(np.isin(tree.span[tree.places(trajectory.leaf.node, trajectory.leaf.offset)], spans).any())


def labels(group: RolloutGroup, trajectory: Trajectory) -> dict[str, str]:
    """The string columns of a sequence: its task, the task's category, and its role."""
    task = group.request.task
    return {"task": task.id, "category": str(task.tags.get("category", "")), "role": trajectory.role}


def _segments(
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
    parts: list[Segment] = []
    learned: dict[int, np.ndarray] = {}
    for text in texts:
        first = len(parts)
        text = [(node, np.zeros_like(rows) if node in early else rows) for node, rows in text]
        if len(texts) > 1 and not any(rows.any() for _, rows in text):
            continue
        for node, rows in text:
            label = names[min(sampled_nodes.index(node), len(names) - 1)] if node in sampled_nodes else None
            # Tokens outside the action mask are never learned: a run ends only where an action's learning changes.
            at = slice(tree.begin[node], tree.begin[node] + len(rows))
            runs = _runs(rows, action_mask[at], absent[at])
            parts += [Segment(Ref(episode.id, node), label if on else None, start, stop) for start, stop, on in runs]
            learned.setdefault(node, rows)
        if 0 < first < len(parts):
            parts[first] = parts[first]._replace(fresh=True)
    return tuple(parts), list(learned.items())


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


def _score_column(
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
