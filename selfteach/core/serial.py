"""Core values to JSON and back.

Blocks go by their registered names; nothing is unpickled or imported by what a file says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from .batch import Segment
from .blocks import Block
from .claim import Check, Claim
from .disk import disk_errors, write_whole
from .errors import BadCheckpoint, unknown
from .method import Method, ModelRole, Stage, Term, Update, WeightSpec
from .registry import blocks
from .task import Ref, RolloutRequest, Sampling, Steering, Task
from .tree import Score, Trajectory

KINDS: dict[str, type] = {
    c.__name__: c
    for c in (
        Term,
        Update,
        Stage,
        WeightSpec,
        ModelRole,
        Method,
        Check,
        Claim,
        Sampling,
        Steering,
        RolloutRequest,
        Task,
        Ref,
        Segment,
        Score,
        Trajectory,
    )
}


def to_json(value: Any) -> Any:
    """A value of the core as plain JSON.

    Tuples become {"tuple": [...]}. Raises TypeError for a value that has no JSON (a lambda).
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Block):
        if value.name not in blocks:
            raise TypeError(f"{value} cannot go to JSON: {value.name} is not a registered block, put @block above it")
        return {"block": value.name, "args": {k: to_json(v) for k, v in value.args.items()}, "reads": dict(value.reads)}
    if type(value).__name__ in KINDS and isinstance(value, KINDS[type(value).__name__]):
        return {"kind": type(value).__name__, **{n: to_json(getattr(value, n)) for n in _field_names(type(value))}}
    if isinstance(value, tuple):
        return {"tuple": [to_json(v) for v in cast("tuple[Any, ...]", value)]}
    if isinstance(value, list):
        return [to_json(v) for v in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        if all(isinstance(k, str) and k not in ("tuple", "block", "kind", "map") for k, _ in items):
            return {k: to_json(v) for k, v in items}
        return {"map": [[to_json(k), to_json(v)] for k, v in items]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(
        f"a {type(value).__name__} cannot go to JSON ({str(value)[:60]}): use a block, a number, text, or a"
        " container of them"
    )


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else kind._fields


def from_json(data: Any) -> Any:
    """What `to_json` was given.

    Raises UnknownName for a block that is not registered, BadCheckpoint for an unknown kind.
    """
    if isinstance(data, list):
        return [from_json(v) for v in cast("list[Any]", data)]
    if not isinstance(data, dict):
        return data
    data = cast("dict[str, Any]", data)
    if "tuple" in data:
        return tuple(from_json(v) for v in data["tuple"])
    if "map" in data:
        return {from_json(k): from_json(v) for k, v in data["map"]}
    if "block" in data:
        block = blocks.get(data["block"])
        return block(**{k: from_json(v) for k, v in data["args"].items()}).reading(**data["reads"])
    if "kind" in data:
        kind: Any = KINDS.get(data["kind"])
        if kind is None:
            raise BadCheckpoint(f"a value of kind {data['kind']!r} is unknown; was it written by a newer selfteach?")
        known = _field_names(kind)
        given = {k: from_json(v) for k, v in data.items() if k != "kind"}
        for name in given:
            if name not in known:
                raise unknown(f"field of {data['kind']}", name, known)
        return KINDS[data["kind"]](**given)
    return {k: from_json(v) for k, v in data.items()}


def plain_text(value: Any) -> str:
    """The JSON text of `plain(value)`, with what has no JSON as its str.

    The encoder's own walk, in C, does where all is JSON already but for some NumPy numbers: most values of a log.
    """

    def other(value: Any) -> Any:
        return plain(value) if isinstance(value, np.generic | Mapping) else str(value)

    try:
        return json.dumps(value, allow_nan=False, default=other)
    except (ValueError, TypeError):  # a number that is not finite, or a key that is no text
        return json.dumps(plain(value), default=str)


def plain(value: Any) -> Any:
    """A value as plain JSON, for logs and results: numbers that are not finite become null, NumPy's become Python's."""
    if isinstance(value, np.generic):
        value = cast(Any, value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in cast("list[Any]", value)]
    return value


def write_json(file: Path, value: Any) -> None:
    """Write a JSON file atomically, and its folder where that is missing.

    Raises SelfteachError for a full disk or a folder that cannot be written.
    """
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(plain(value), indent=1) + "\n")
