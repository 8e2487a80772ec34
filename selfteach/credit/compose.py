"""Composers: groups of scored episodes to examples, each, in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ..core import BadValue, Example, Group, block
from . import recipe


@block
def each(
    *,
    groups: Sequence[Group],
    stream: str | tuple[str, ...] | None = None,
    mask: tuple[str, ...] = (),
    member: str | None = "policy",
    roles: tuple[str, ...] = (),
    turns: int | None = None,
    steps: tuple[str, ...] = (),
    tokens: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> list[Example]:
    """Learn from each closed trajectory: its path as it was, its sampled tokens learned, its scores as columns.

    Args:
        stream  what they teach: a name, or one per turn (the last goes on); None: what the trajectory says
        mask    spans whose tokens are context only, such as ("information",)
        member  whose logp the bare name means; None: the trajectory's role
        roles   only these; none named: all
        turns   learn only the last so many sampled turns
        steps   scores that are per step even in a batch that has them at leaves only
        tokens  scores that are per token, and stand in every batch, also in one that has none of them
        without spans that are left out altogether, so that what was drawn with a ("hint",) is learned as if there had been none;
                old_logp stays what drew it, and the column `moved` is 1 for the sequences that had any

    Left out: trajectories that teach nothing (learn None), and those whose reward is None. Columns: every score, per seq where all its
    places are leaves, per step where the others end a node, else per token (at the last learned token before its place), NaN where there
    is none and no row where nothing learned stands before; `truncated` per seq, 1 where there was no more room; and `task`, `category`
    (of the task's tags) and `role` per seq, words for what keeps books by name.
    Example.name is episode:leaf, key the trajectory's.
    """
    return recipe.examples(groups, stream, mask, member, roles, turns, steps, without, tokens)


@block
def pairs(
    *,
    groups: Sequence[Group],
    margin: float = 0.0,
    choose: Literal["extreme", "all"] = "extreme",
    score: str = "reward",
    stream: str | tuple[str, ...] | None = None,
    mask: tuple[str, ...] = (),
    member: str | None = "policy",
    roles: tuple[str, ...] = (),
) -> list[Example]:
    """Preferences within a key: the best against the worst, or every two, where they differ by more than `margin` (on-policy DPO).

    Ties go to the earlier; what is in no pair is left out. The rest as in `each`. A trunk that both sides sampled is learned in both and
    cancels in a difference.
    """
    if choose not in ("extreme", "all"):
        raise BadValue(f"pairs: choose must be extreme or all, not {choose!r}")
    found = recipe.examples(groups, stream, mask, member, roles)
    beats: dict[int, list[int]] = {}
    for rows in by_key(found).values():
        value = {i: _value(found[i], score) for i in rows}
        ranked = sorted((i for i in rows if value[i] == value[i]), key=lambda i: -value[i])
        ends = [(ranked[0], min(rows_of_least(ranked, value)))] if ranked else []
        tried = ends if choose == "extreme" else [(i, j) for a, i in enumerate(ranked) for j in ranked[a + 1 :]]
        for win, lose in tried:
            if value[win] - value[lose] > margin:
                beats.setdefault(win, []).append(lose)
    kept = sorted({*beats, *(j for losers in beats.values() for j in losers)})
    new = {old: i for i, old in enumerate(kept)}
    return [replace(found[i], beats=tuple(new[j] for j in beats.get(i, ()))) for i in kept]


def by_key(found: Sequence[Example]) -> dict[str, list[int]]:
    """Key -> numbers of its examples, both in the order they came."""
    out: dict[str, list[int]] = {}
    for i, example in enumerate(found):
        out.setdefault(example.key, []).append(i)
    return out


def rows_of_least(rows: Sequence[int], value: dict[int, float]) -> list[int]:
    """Those of the rows whose value is the smallest."""
    low = min(value[i] for i in rows)
    return [i for i in rows if value[i] == low]


def _value(example: Example, score: str) -> float:
    unit, value = example.given.get(score, ("seq", float("nan")))
    if unit != "seq":
        raise BadValue(f"pairs: score {score!r} is per {unit}; pairs compare whole sequences")
    return float(value)
