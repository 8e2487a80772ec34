"""Rewards made of rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core import BadValue, Group, Part, Ref, Score, Scores, block
from ..core.scoring import score


@block
async def weighted(*, group: Group, cast: Any, deadline: float, parts: tuple[tuple[float, Part], ...] = ()) -> Scores:
    """A sum of rewards with weights: weighted(parts=((0.9, exact_match()), (0.1, search_format()))).

    Unknown where any of its parts is unknown. At a place along the way that only some of them score it is the sum of those.
    """
    found = [await score(part, [group], cast, deadline) for _, part in parts]
    places = dict.fromkeys(at for f in found for at in f.get("reward", {}))
    return _joined(found, lambda values: sum(parts[i][0] * v for i, v in values.items()), places)


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
async def gated(*, group: Group, cast: Any, deadline: float, levels: tuple[tuple[Part, float], ...] = ()) -> Scores:
    """Rewards by rank, each counted only where all above it reach their thresholds: gated(levels=((exact_match(), 1.0), (form(), 0.0))).

        R = R_1 + sum over j > 1 of [R_i >= threshold_i for all i < j] R_j      (gated accumulation, G-RA, arXiv 2508.10548)

    The last threshold is never asked. The part `open` says how many levels counted. Unknown where any level is unknown.
    """
    if not levels:
        raise ValueError("gated needs levels=((reward, threshold), ...), the most important first")
    found = [await score(part, [group], cast, deadline) for part, _ in levels]

    def counted(values: Mapping[int, float]) -> int:
        shut = (n for n, (_, threshold) in enumerate(levels) if values[n] < threshold)
        return min(next(shut, len(levels)) + 1, len(levels))

    out = _joined(found, lambda values: sum(values[n] for n in range(counted(values))))
    for at, have in out["reward"].items():
        if have.value is not None:
            values = {n: f["reward"][at].value or 0.0 for n, f in enumerate(found)}
            out["reward"][at] = replace(have, parts={**have.parts, "open": float(counted(values))})
    return out


@block
async def clip(*, group: Group, cast: Any, deadline: float, reward: Part | None = None, low: float = 0.0, high: float = 1.0) -> Scores:
    """A reward held between two bounds."""
    if reward is None:
        raise ValueError("clip needs reward=")
    return _joined([await score(reward, [group], cast, deadline)], lambda values: min(max(values[0], low), high))


def _joined(found: Sequence[Scores], join: Callable[[dict[int, float]], float], places: Iterable[Ref] | None = None) -> Scores:
    """Join the `reward` of several scores place by place (places: those of the first), keeping parts, reasons, errors and other columns."""
    out: dict[Ref, Score] = {}
    for at in found[0].get("reward", {}) if places is None else places:
        each = {i: f["reward"][at] for i, f in enumerate(found) if places is None or at in f.get("reward", {})}
        known = {i: s.value for i, s in each.items() if s.value is not None}
        parts = {k: v for s in each.values() for k, v in s.parts.items()}
        why = "; ".join(s.why for s in each.values() if s.why)
        error = next((s.error for s in each.values() if s.error), None)
        out[at] = Score(join(known) if len(known) == len(each) else None, parts, why, error)
    return {column: other for f in found[::-1] for column, other in f.items()} | {"reward": out}
