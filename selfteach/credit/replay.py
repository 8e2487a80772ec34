"""Experience replay: learning from earlier groups. The buffer holds Refs into the run's log and columns, no tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ..core import (
    Example,
    Ref,
    RolloutGroup,
    Segment,
    block,
    delayed_start,
    stateful,
)
from ..core.random_keys import generator
from .composers import by_key, per_trajectory


@block
@stateful(lambda: {"groups": []})
def replay(
    *,
    groups: Sequence[RolloutGroup],
    state: dict[str, Any],
    size: int = 64,
    take: int = 8,
    order: Literal["oldest", "newest", "random"] = "oldest",
    again: bool = False,
    drop_zero_variance: bool = True,
    loss_stream: str | tuple[str, ...] | None = None,
    mask: tuple[str, ...] = (),
    model_role: str | None = "policy",
) -> tuple[list[Example], dict[str, Any]]:
    """Add up to `take` groups of earlier steps to the batch, from a buffer of the newest `size` groups.

    It belongs after `per_trajectory`. A group is replayed whole, under a key of its own, so that statistics over it are
    unchanged and do not mix with new samples; ids, versions and old_logp come from the log. A group can be replayed
    from the step after it was stored.

    order               which of them: the oldest, the newest, or a random draw without repeats
    again               replayed groups stay in the buffer
    drop_zero_variance  groups whose rewards are all equal are not stored
    """
    store: list[dict[str, Any]] = state["groups"]
    n = len(store)
    places = {"oldest": range(n), "newest": range(n - 1, -1, -1), "random": shuffled(store, "replay")}[order][:take]
    out = [from_stored(e, store[i]["key"]) for i in places for e in store[i]["examples"]]
    rest = store if again else [g for i, g in enumerate(store) if i not in places]
    examples = per_trajectory(groups=groups, loss_stream=loss_stream, mask=mask, model_role=model_role)
    fresh: list[dict[str, Any]] = []
    for key, rows in by_key(examples).items():
        rewards = [np.asarray(examples[i].given["reward"][1]).tolist() for i in rows if "reward" in examples[i].given]
        if drop_zero_variance and rewards and all(r == rewards[0] for r in rewards):
            continue
        stored = [to_stored(examples[i]) for i in rows]
        fresh.append({"key": f"{key}@{examples[rows[0]].name}", "examples": stored})
    return out, {"groups": [*rest, *fresh][-size:] if size else []}


def shuffled(store: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    """The places of the buffer of that name in a random order, another one whenever something new is in it."""
    newest = store[-1]["key"] if store else ""
    return [int(i) for i in generator(name, newest).permutation(len(store))]


@block
@delayed_start("updates")
@stateful(lambda: {"batches": []})
def delayed(
    *,
    groups: Sequence[RolloutGroup],
    state: dict[str, Any],
    updates: int = 16,
    loss_stream: str | tuple[str, ...] | None = None,
    mask: tuple[str, ...] = (),
    model_role: str | None = "policy",
) -> tuple[list[Example], dict[str, Any]]:
    """`per_trajectory` of the groups of `updates` steps ago: off-policy data, as in an asynchronous run.

    Nothing is learned in the first `updates` steps, so that the batches up to then are of the first policy. The first
    `updates` batches that are learned are 0, 1 ... updates - 1 updates old, all later ones exactly `updates`. M2PO's
    protocol (2510.01161, section 3.2) is that without the idle steps: there the first updates are made on data of the
    first policy, so a run with `updates` steps more has as many updates as theirs. Groups stay whole; ids, versions and
    old_logp come from the log.
    """
    fresh = [
        to_stored(e) | {"key": e.key}
        for e in per_trajectory(groups=groups, loss_stream=loss_stream, mask=mask, model_role=model_role)
    ]
    batches = [*state["batches"], fresh]
    if len(batches) <= updates:
        return [], {"batches": batches}
    return [from_stored(e, f"{e['key']}@late") for e in batches[0]], {"batches": batches[1:]}


def to_stored(example: Example) -> dict[str, Any]:
    """An example as a block's state holds it: Refs into the run's log, and columns."""
    given: dict[str, Any] = {n: [u, np.asarray(v, np.float64)] for n, (u, v) in example.given.items()}
    segments = [[list(s.source), *s[1:]] for s in example.segments]
    return {
        "name": example.name,
        "model_role": example.model_role,
        "segments": segments,
        "given": given,
        "labels": dict(example.labels),
    }


def from_stored(stored: Mapping[str, Any], key: str) -> Example:
    """The example that was stored, in the group `key`."""
    segments = tuple(Segment(Ref(*source), *rest) for source, *rest in stored["segments"])
    given = {n: (unit, values) for n, (unit, values) in stored["given"].items()}
    return Example(segments, stored["model_role"], key, stored["name"], given=given, labels=stored["labels"])
