"""Composers: scored groups to examples, one per trajectory, or in preference pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Literal

from ..core import BadValue, Example, RolloutGroup, block
from . import example_recipes


@block
def per_trajectory(
    *,
    groups: Sequence[RolloutGroup],
    loss_stream: str | tuple[str, ...] | None = None,
    mask: tuple[str, ...] = (),
    model_role: str | None = "policy",
    roles: tuple[str, ...] = (),
    turns: int | None = None,
    steps: tuple[str, ...] = (),
    tokens: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> list[Example]:
    """One example per closed trajectory: its whole path, its sampled tokens learned, its scores as columns.

    Args:
        loss_stream  the loss stream of its tokens: a name, or one per turn (the last for all later turns);
                     None: the trajectory's own
        mask         spans whose tokens are context only, such as ("information",)
        model_role   the model whose logp the column `logp` is; None: the trajectory's role
        roles        only trajectories of these roles; empty: all
        turns        only the last so many sampled turns are learned
        steps        scores that are per step even in a batch that has them at leaves only
        tokens       scores that are per token, and are columns of every batch, also of one without any of them
        without      spans that are removed, so that what was sampled with a ("hint",) is learned as if without it;
                     old_logp stays that of sampling, and the column `off_context` is 1 for sequences that had any

    Left out: trajectories that are not learned (learn None), and those whose reward is None.

    Columns: every score, per seq where all its places are leaves, per step where the others end a node, else per token
    (at the last learned token before its place), NaN where there is none and no row where no learned token precedes it;
    `truncated` per seq, 1 where the token limit ended it; and the strings `task`, `category` (of the task's tags) and
    `role` per seq. Example.name is episode:leaf, Example.key the trajectory's.
    """
    return example_recipes.examples(groups, loss_stream, mask, model_role, roles, turns, steps, without, tokens)


@block
def preference_pairs(
    *,
    groups: Sequence[RolloutGroup],
    margin: float = 0.0,
    choose: Literal["extreme", "all"] = "extreme",
    score: str = "reward",
    loss_stream: str | tuple[str, ...] | None = None,
    mask: tuple[str, ...] = (),
    model_role: str | None = "policy",
    roles: tuple[str, ...] = (),
) -> list[Example]:
    """Preference pairs within a key: the best over the worst, or all pairs, that differ by more than `margin`.

    For on-policy DPO. Of equal scores the earlier trajectory is taken; examples in no pair are left out. Other
    arguments as in `per_trajectory`. A prefix that both sides sampled is learned in both and cancels in a difference.
    """
    if choose not in ("extreme", "all"):
        raise BadValue(f"preference_pairs: choose must be extreme or all, not {choose!r}")
    examples = example_recipes.examples(groups, loss_stream, mask, model_role, roles)
    preferred_over: dict[int, list[int]] = {}
    for rows in by_key(examples).values():
        value = {i: _value(examples[i], score) for i in rows}
        ranked = sorted((i for i in rows if value[i] == value[i]), key=lambda i: -value[i])
        extremes = [(ranked[0], min(rows_of_least(ranked, value)))] if ranked else []
        candidates = extremes if choose == "extreme" else combinations(ranked, 2)
        for win, lose in candidates:
            if value[win] - value[lose] > margin:
                preferred_over.setdefault(win, []).append(lose)
    kept = sorted({*preferred_over, *(j for losers in preferred_over.values() for j in losers)})
    new = {old: i for i, old in enumerate(kept)}
    return [replace(examples[i], preferred_over=tuple(new[j] for j in preferred_over.get(i, ()))) for i in kept]


def by_key(examples: Sequence[Example]) -> dict[str, list[int]]:
    """Key -> indices of its examples, both in the order of the examples."""
    out: dict[str, list[int]] = {}
    for i, example in enumerate(examples):
        out.setdefault(example.key, []).append(i)
    return out


def rows_of_least(rows: Sequence[int], value: dict[int, float]) -> list[int]:
    """The rows whose value is the smallest."""
    low = min(value[i] for i in rows)
    return [i for i in rows if value[i] == low]


def _value(example: Example, score: str) -> float:
    unit, value = example.given.get(score, ("seq", float("nan")))
    if unit != "seq":
        raise BadValue(
            f"preference_pairs: score {score!r} is per {unit}, and pairs compare whole sequences; name a score per seq"
        )
    return float(value)
