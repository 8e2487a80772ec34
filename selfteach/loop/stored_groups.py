"""Groups of rollouts as a checkpoint holds them, and back: the same values, and nothing pickled."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import BadValue
from ..core.serial import from_json, to_json
from ..core.task import Ref
from ..core.tree import Episode, RolloutGroup
from .log import Rollouts, pack


def to_stored(groups: Sequence[RolloutGroup]) -> dict[str, Any]:
    """Groups as arrays and plain values. Raises BadValue for a request or an answer that has no JSON."""
    return {"trees": np.frombuffer(pack(groups, None), np.uint8), "groups": [_stored(g) for g in groups]}


def _stored(group: RolloutGroup) -> dict[str, Any]:
    try:
        return {
            "request": to_json(group.request),
            "key": group.key,
            "scores": {name: [to_json((at, s)) for at, s in places.items()] for name, places in group.scores.items()},
            "episodes": [
                {
                    "id": e.id,
                    "answer": to_json(e.answer),
                    "trajectories": to_json(e.trajectories),
                    "status": e.status,
                    "why": e.why,
                    "cost": dict(e.cost),
                }
                for e in group.episodes
            ],
        }
    except TypeError as error:
        raise BadValue(
            f"staleness: {error}; rollouts that wait to be learned go into checkpoints, so programs must return and "
            "tasks must hold text, numbers, lists and dicts, or take --staleness 0"
        ) from None


def from_stored(stored: Mapping[str, Any]) -> list[RolloutGroup]:
    """What `to_stored` was given."""
    trees = Rollouts(io.BytesIO(stored["trees"].tobytes()))
    groups: list[RolloutGroup] = []
    for g in stored["groups"]:
        episodes = [
            Episode(
                e["id"],
                trees.tree(e["id"]),
                from_json(e["trajectories"]),
                from_json(e["answer"]),
                e["status"],
                e["why"],
                dict(e["cost"]),
            )
            for e in g["episodes"]
        ]
        scores = {name: {Ref(*at): s for at, s in map(from_json, pairs)} for name, pairs in g["scores"].items()}
        groups.append(RolloutGroup(from_json(g["request"]), episodes, scores, g["key"]))
    return groups
