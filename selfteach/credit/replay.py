"""Learning again from earlier groups. The store holds Refs into the run's log and columns, never tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from ..core import BadValue, Column, Example, Group, History, Part, Ref, Segment, Seq, Tree, block, holds_back, remembers
from . import recipe
from .baseline import norm
from .compose import by_key


@block
@remembers(lambda: {"groups": []})
def replay(
    *,
    groups: Sequence[Group],
    state: dict[str, Any],
    size: int = 64,
    take: int = 8,
    order: Literal["oldest", "newest"] = "oldest",
    again: bool = False,
    informative: bool = True,
    credit: Part | None = None,
    stream: str | tuple[str, ...] | None = None,
    mask: tuple[str, ...] = (),
    member: str | None = "policy",
) -> tuple[list[Example], dict[str, Any]]:
    """Add up to `take` groups of earlier steps to the batch: put it after `each`. Keeps the newest `size` groups.

    A group comes back whole, under a key of its own, so that statistics over it are what they were and never mix with fresh siblings;
    ids, versions and old_logp come from the log. again: what was taken stays in the store. informative: groups whose rewards are all
    equal are not kept. credit: an assigner of (reward, group), as norm(), run as a group is stored: its advantage comes back as the
    column `past_adv`, and `recall()` puts it in place of a new one. What is stored in a step comes back in the next at the earliest.
    """
    store: list[dict[str, Any]] = state["groups"]
    front = store[:take] if order == "oldest" else store[::-1][:take]
    out = [_load(e, g["key"]) for g in front for e in g["examples"]]
    rest = store if again else store[take:] if order == "oldest" else store[: max(0, len(store) - take)]
    found = recipe.examples(groups, stream, mask, member)
    past = _advantages(found, credit) if credit is not None and found else None
    fresh: list[dict[str, Any]] = []
    for key, rows in by_key(found).items():
        rewards = [np.asarray(found[i].given["reward"][1]).tolist() for i in rows if "reward" in found[i].given]
        if informative and rewards and all(r == rewards[0] for r in rewards):
            continue
        examples = [_dump(found[i], None if past is None else float(past[i])) for i in rows]
        fresh.append({"key": f"{key}@{found[rows[0]].name}", "examples": examples})
    return out, {"groups": [*rest, *fresh][-size:] if size else []}


@block
@remembers(lambda: {"store": [], "owed": 0.0})
def recompose(
    *,
    groups: Sequence[Group],
    history: History,
    state: dict[str, Any],
    credit: Part | None = None,
    share: float = 0.5,
    capacity: int = 128,
    take: int = 64,
    often: float | Part = 1.0,
    by: Literal["tokens", "turns"] = "tokens",
    right: float = 1.0,
    late: str = "comp",
    mask: tuple[str, ...] = (),
    member: str | None = "policy",
) -> tuple[list[Example], dict[str, Any]]:
    """Learn first from short right and long wrong answers; the rest waits in a store and comes back later (RoRecomp, arXiv 2509.25958).

    Within a group the right answers (reward of at least `right`) are ranked by length ascending, the wrong ones descending, and the top
    `share` of each, rounded up, is the priority batch. The others are kept by Ref with their advantage, in order; once `capacity` of them
    wait, the `take` oldest come back as examples of the stream `late`, in the share `often` of the steps (a number, or a schedule of the
    history; what it comes to is saved up, so that nothing is drawn). Beyond `capacity` + `take` the oldest are lost.

    credit   an assigner of (reward, group), as norm() (which it is where none is given), run on the whole group before it is divided:
             the column `adv` of every example
    by       length in tokens that are learned, or in turns

    Answers without an advantage (0) are not kept: they teach nothing. What is kept in a step comes back in the next at the earliest.
    """
    if by not in ("tokens", "turns"):
        raise BadValue(f"recompose: by must be tokens or turns, not {by!r}")
    found = recipe.examples(groups, None, mask, member)
    adv: list[float] = _advantages(found, credit or norm()).tolist() if found else []
    made = [replace(e, given={**e.given, "adv": ("seq", np.float64(a))}) for e, a in zip(found, adv, strict=True)]
    trees = {e.id: e.tree for g in groups for e in g.episodes}
    length = [_length(e, trees, by) for e in found]
    first: set[int] = set()
    for rows in by_key(found).values():
        good = {i: float(np.asarray(found[i].given.get("reward", ("seq", 0.0))[1])) >= right for i in rows}
        for want in (True, False):
            ranked = sorted((i for i in rows if good[i] is want), key=lambda i: (length[i] if good[i] else -length[i], found[i].name))
            first.update(ranked[: math.ceil(share * len(ranked))])
    owed = min(state["owed"] + float(often(history=history) if isinstance(often, Part) else often), 1.0)
    store: list[dict[str, Any]] = state["store"]
    back: list[Example] = []
    if owed >= 1.0 - 1e-9 and len(store) >= capacity:
        back, store, owed = [_load(e, f"{e['key']}@{e['name']}") for e in store[:take]], store[take:], owed - 1.0
    rest = [_dump(_taught(made[i], late), None) | {"key": made[i].key} for i in range(len(made)) if i not in first and adv[i]]
    return [made[i] for i in sorted(first)] + back, {"store": [*store, *rest][-capacity - take :], "owed": owed}


def _taught(example: Example, stream: str) -> Example:
    """The example with what it learns in another stream."""
    return replace(example, parts=tuple(p._replace(learn=stream) if p.learn else p for p in example.parts))


def _length(example: Example, trees: Mapping[str, Tree], by: str) -> int:
    learned = [p for p in example.parts if p.learn and isinstance(p.source, Ref)]
    if by == "turns":
        return len({p.source for p in learned})
    total = 0
    for source, _, start, stop, _ in learned:
        tree = trees[source.episode]  # type: ignore[union-attr]
        total += int(tree.chosen[tree.begin[source.node] : tree.stop(source.node)][start:stop].sum())  # type: ignore[union-attr]
    return total


@block
@holds_back("updates")
@remembers(lambda: {"batches": []})
def delayed(
    *,
    groups: Sequence[Group],
    state: dict[str, Any],
    updates: int = 16,
    stream: str | tuple[str, ...] | None = None,
    mask: tuple[str, ...] = (),
    member: str | None = "policy",
) -> tuple[list[Example], dict[str, Any]]:
    """What `each` would learn, some steps late: the groups of `updates` steps ago, as an asynchronous run would meet them.

    For the first `updates` steps nothing is learned, so what follows was drawn by the first policy; then every batch is exactly
    `updates` updates old (M2PO's protocol, 2510.01161, section 3). Groups stay whole; ids, versions and old_logp come from the log.
    """
    fresh = [_dump(e, None) | {"key": e.key} for e in recipe.examples(groups, stream, mask, member)]
    batches = [*state["batches"], fresh]
    if len(batches) <= updates:
        return [], {"batches": batches}
    return [_load(e, f"{e['key']}@late") for e in batches[0]], {"batches": batches[1:]}


@block
def recall(*, adv: Seq, past_adv: Seq) -> dict[str, Column]:
    """The advantage a replayed sequence had when it was stored, in place of a new one: adv = past_adv where there is one. Both f64[S]."""
    past = np.asarray(past_adv, np.float64)
    return {"adv": Column("seq", np.where(np.isnan(past), np.asarray(adv, np.float64), past))}


def _advantages(found: Sequence[Example], credit: Part) -> np.ndarray:
    odd = sorted(set(credit.needs) - {"reward", "group"})
    if odd:
        raise BadValue(f"replay: credit must be an assigner of (reward, group), but {credit} also needs {', '.join(odd)}")
    group = np.zeros(len(found), np.int64)
    for number, rows in enumerate(by_key(found).values()):
        group[rows] = number
    reward = np.array([e.given["reward"][1] if "reward" in e.given else np.nan for e in found], np.float64)
    return credit(**{n: v for n, v in (("reward", reward), ("group", group)) if n in credit.needs})["adv"].values


def _dump(example: Example, adv: float | None) -> dict[str, Any]:
    given: dict[str, Any] = {n: [u, np.asarray(v, np.float64)] for n, (u, v) in example.given.items()}
    if adv is not None:
        given["past_adv"] = ["seq", np.float64(adv).reshape(())]
    parts = [[list(s.source), *s[1:]] for s in example.parts]
    return {"name": example.name, "member": example.member, "parts": parts, "given": given, "labels": dict(example.labels)}


def _load(stored: Mapping[str, Any], key: str) -> Example:
    parts = tuple(Segment(Ref(*source), *rest) for source, *rest in stored["parts"])
    given = {n: (unit, values) for n, (unit, values) in stored["given"].items()}
    return Example(parts, stored["member"], key, stored["name"], given=given, labels=stored["labels"])
