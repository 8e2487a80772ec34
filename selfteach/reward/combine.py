"""Rewards made of rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core import BadValue, Group, Part, Score, Scores, block
from ..core.scoring import score


@block
async def weighted(*, group: Group, cast: Any, deadline: float, parts: tuple[tuple[float, Part], ...] = ()) -> Scores:
    """A sum of rewards with weights: weighted(parts=((0.9, exact_match()), (0.1, search_format()))).

    Unknown where any of its parts is unknown.
    """
    found = [await score(part, [group], cast, deadline) for _, part in parts]
    return _joined(found, lambda values: sum(w * v for (w, _), v in zip(parts, values, strict=True)))


@block
async def gate(*, group: Group, cast: Any, deadline: float, by: Part | None = None, then: Part | None = None, above: float = 0.0) -> Scores:
    """The reward `then` where the reward `by` is above a bound, else 0."""
    if by is None or then is None:
        raise ValueError("gate needs both by= and then=")
    found = [await score(by, [group], cast, deadline), await score(then, [group], cast, deadline)]
    return _joined(found, lambda values: values[1] if values[0] > above else 0.0)


@block
async def by_program(*, group: Group, cast: Any, deadline: float, parts: tuple[tuple[str, Part], ...] = ()) -> Scores:
    """The reward of the program that a group's episodes ran: by_program(parts=(("main", exact_match()), ("review", noted())))."""
    part = dict(parts).get(group.request.program)
    if part is None:
        raise BadValue(f"by_program: no reward for the program {group.request.program!r}; it has {', '.join(n for n, _ in parts)}")
    return await score(part, [group], cast, deadline)


@block
async def clip(*, group: Group, cast: Any, deadline: float, reward: Part | None = None, low: float = 0.0, high: float = 1.0) -> Scores:
    """A reward held between two bounds."""
    if reward is None:
        raise ValueError("clip needs reward=")
    return _joined([await score(reward, [group], cast, deadline)], lambda values: min(max(values[0], low), high))


def _joined(found: Sequence[Scores], join: Callable[[list[float]], float]) -> Scores:
    """Join the `reward` of several scores place by place, keeping parts, reasons and errors."""
    out: dict[Any, Score] = {}
    for at in found[0].get("reward", {}):
        each = [f["reward"][at] for f in found]
        values = [s.value for s in each]
        known = [v for v in values if v is not None]
        parts = {k: v for s in each for k, v in s.parts.items()}
        why = "; ".join(s.why for s in each if s.why)
        error = next((s.error for s in each if s.error), None)
        out[at] = Score(join(known) if len(known) == len(values) else None, parts, why, error)
    return {"reward": out}
