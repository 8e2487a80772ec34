"""Core values to JSON and back. Blocks go by their registered names; nothing is unpickled or imported by what a file says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from .batch import Segment
from .errors import BadCheckpoint, unknown
from .method import Check, Claim, Member, Method, Stage, Term, Update, Weights
from .part import Part
from .registry import blocks
from .task import Ref, Request, Sampling, Task
from .tree import Score, Trajectory

KINDS: dict[str, type] = {
    c.__name__: c for c in (Term, Update, Stage, Weights, Member, Method, Check, Claim, Sampling, Request, Task, Ref, Segment, Score, Trajectory)
}


def to_json(value: Any) -> Any:
    """A value of the core as plain JSON. Tuples become {"tuple": [...]}. Raises TypeError for what cannot go (a lambda, say)."""
    if isinstance(value, Part):
        return {"block": value.name, "args": {k: to_json(v) for k, v in value.args.items()}, "reads": dict(value.reads)}
    if type(value).__name__ in KINDS and isinstance(value, KINDS[type(value).__name__]):
        names = [f.name for f in fields(value)] if is_dataclass(value) else list(value._fields)
        return {"kind": type(value).__name__, **{n: to_json(getattr(value, n)) for n in names}}
    if isinstance(value, tuple):
        return {"tuple": [to_json(v) for v in value]}
    if isinstance(value, list):
        return [to_json(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot go to JSON ({str(value)[:60]}): use a block, a number, text, or a container of them")


def from_json(data: Any) -> Any:
    """What `to_json` was given. Raises UnknownName for a block that nobody registered, BadCheckpoint for an unknown kind."""
    if isinstance(data, list):
        return [from_json(v) for v in data]
    if not isinstance(data, dict):
        return data
    if "tuple" in data:
        return tuple(from_json(v) for v in data["tuple"])
    if "block" in data:
        part = blocks.get(data["block"])
        return part(**{k: from_json(v) for k, v in data["args"].items()}).reading(**data["reads"])
    if "kind" in data:
        kind = KINDS.get(data["kind"])
        if kind is None:
            raise BadCheckpoint(f"a value of kind {data['kind']!r} is not known here; was it written by a newer selfteach?")
        known = {f.name for f in fields(kind)} if is_dataclass(kind) else set(kind._fields)  # type: ignore[attr-defined]
        given = {k: from_json(v) for k, v in data.items() if k != "kind"}
        for name in given:
            if name not in known:
                raise unknown(f"field of {data['kind']}", name, known)
        return kind(**given)
    return {k: from_json(v) for k, v in data.items()}
