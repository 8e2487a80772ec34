"""Composers: scored groups to examples, one per trajectory, or in preference pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Literal

from ..core import BadValue, Block, Example, RolloutGroup, Unit, block
from ..core.score_places import places_of, unit_of, unscored
from .example_recipes import has_spans, labels, score_column, segments_of


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
        segments, learned = segments_of(episode, t, loss_stream or t.learn, mask, turns, without)
        if not segments:
            continue
        given: dict[str, tuple[Unit, Any]] = {"truncated": ("seq", float(t.status in ("length", "limit")))}
        if without and has_spans(episode, t, without):
            given["off_context"] = ("seq", 1.0)
        for name, places in scores.items():
            values = score_column(episode, t, name, units[name], places, learned)
            if values is not None:
                given[name] = values
        out.append(
            Example(
                segments,
                model_role or t.role,
                t.key,
                t.leaf.name,
                given=given,
                labels=labels(group, t.role),
            )
        )
    return out


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
    examples = per_trajectory(groups=groups, loss_stream=loss_stream, mask=mask, model_role=model_role, roles=roles)
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


@block
def of_another_model(*, groups: Sequence[RolloutGroup], compose: Block | None = None) -> list[Example]:
    """The examples of a composer (None: per_trajectory) that another model has sampled than the one that learns them.

    The column `off_context` is 1: their log-probabilities at sampling are not compared with the learner's.
    """
    made = (compose or per_trajectory())(groups=groups)
    return [replace(e, given={**e.given, "off_context": ("seq", 1.0)}) for e in made]


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
