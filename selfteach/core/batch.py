"""Examples (segments of stored nodes) and batches (flat ragged columns, without padding)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np

from .blocks import Array, Unit
from .errors import BadValue
from .task import Ref

# From fine to coarse: each row of a unit belongs to one row of the next.
UNIT_CHAIN: tuple[Unit, ...] = ("token", "step", "seq", "group", "batch")
EPISODE_CHAIN: tuple[Unit, ...] = ("token", "step", "seq", "episode")


class Segment(NamedTuple):
    """Consecutive tokens of an example: start:stop of a stored node, or given ids.

    learn  the loss stream of its tokens under the action mask (of given ids: of all); None: context only
    fresh  it begins a new text, which does not attend to the segments before it
    """

    source: Ref | tuple[int, ...]
    learn: str | None
    start: int = 0
    stop: int | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Example:
    """A training sequence as segments of stored nodes: hints left out, failed turns cut, corrections put in.

    Each learned token keeps as `old_logp` the log-probability that it was sampled with.

    segments        in order
    model_role      the model whose `logp`, `value` ... columns without a model's name mean
    key             the group that its rewards are compared in
    name            of the sequence, in messages and logs
    views           view -> prefix after which the same learned tokens are read too
    given           column -> (unit, values), fixed before: scores, replayed advantages, margins
    preferred_over  indices, in the same list, of the examples that it is preferred to: each is a pair
    labels          label -> text of the sequence (task, role, category), which become columns of strings
    """

    segments: tuple[Segment, ...]
    model_role: str
    key: str
    name: str = ""
    views: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    given: Mapping[str, tuple[Unit, Any]] = field(default_factory=dict[str, "tuple[Unit, Any]"])
    preferred_over: tuple[int, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class Column(NamedTuple):
    """One value per row of a unit; NaN: unknown."""

    unit: Unit
    values: Array


@dataclass(slots=True)
class Batch:
    """One optimiser batch, flat. Assigners and terms read its learned rows; the learner also reads the whole sequences.

    Rows: N learned tokens, K steps (a sampled turn each), S sequences, G groups, P pairs.
    columns   id pos span loss_stream version old_logp temperature reward adv ...; each a Column
    index     step[N] seq[K] group[S] batch[G] episode[S]: the coarser row of each row; win, lose [P]: sequences
    ids       i32[F], all tokens of all sequences, end to end
    start     i64[S+1], where each sequence begins in `ids`, and the end
    place     i64[N], the index of each row's token in `ids`
    texts     i64[>=S], where texts begin in `ids`: a sequence is one text, or several that do not attend to each other
    prefixes  view -> the i32 prefix of each sequence; None where it has no such view
    """

    columns: dict[str, Column]
    index: dict[str, np.ndarray]
    ids: np.ndarray
    start: np.ndarray
    place: np.ndarray
    model_role: tuple[str, ...]  # [S]
    names: tuple[str, ...]  # [S]
    loss_streams: tuple[str, ...]  # name of each number in the column `loss_stream`
    spans: tuple[str, ...]  # name of each number in the column `span`
    texts: np.ndarray
    prefixes: dict[str, list[np.ndarray | None]] = field(default_factory=dict)

    def size(self, unit: Unit) -> int:
        """Number of rows of a unit."""
        sizes = {
            "token": len(self.place),
            "step": len(self.index["seq"]),
            "seq": len(self.model_role),
            "group": len(self.index["batch"]),
        }
        if unit == "episode":
            return int(self.index["episode"].max()) + 1 if len(self.model_role) else 0
        return {**sizes, "batch": 1, "pair": len(self.index["win"])}[unit]

    def __contains__(self, name: str) -> bool:
        return name in self.columns or name in self.index

    def get(self, name: str, unit: Unit = "token") -> Any:
        """A column or an index at a unit: coarse is broadcast to fine; fine to coarse is refused (reduce it by name).

        Raises BadValue for a column that is not there, TypeError for fine to coarse.
        """
        if name in ("win", "lose"):
            return self.index[name]
        if name in self.index:
            have, x = cast(Unit, name), None
        elif name in self.columns:
            have, x = self.columns[name]
        else:
            raise BadValue(f"no column {name!r} in the batch; it has {', '.join(sorted(self.columns))}")
        if have == unit and x is not None:
            return x
        chain = EPISODE_CHAIN if have == "episode" else UNIT_CHAIN
        if have not in chain or unit not in chain or chain.index(have) < chain.index(unit):
            raise TypeError(f"{name} is per {have}: reduce it to per {unit}")
        for u in reversed(chain[chain.index(unit) + 1 : chain.index(have) + 1]):
            x = self.index[u] if x is None else x[self.index[u]]
        return np.arange(self.size(unit)) if x is None else x

    def put(self, name: str, unit: Unit, values: Any) -> None:
        """Add or replace a column. Raises BadValue unless it has one value per row of its unit."""
        if len(values) != self.size(unit):
            raise BadValue(f"column {name}: {len(values)} values for {self.size(unit)} rows (per {unit})")
        self.columns[name] = Column(unit, values)

    def lengths(self) -> np.ndarray:
        """i64[S]: learned tokens of each sequence."""
        return np.bincount(self.get("seq"), minlength=self.size("seq"))

    def on(self, loss_streams: Sequence[str]) -> np.ndarray:
        """bool[N]: rows of these loss streams."""
        wanted = np.array([*(s in loss_streams for s in self.loss_streams), False], bool)  # the last: of -1, no stream
        return wanted[self.columns["loss_stream"].values]

    def take(self, rows: np.ndarray) -> Batch:
        """The batch of some rows (bool[N]), with indices renumbered.

        Sequences, steps, groups and pairs without rows are dropped.
        """
        rows = np.asarray(rows, bool)
        if rows.all():
            return self
        keep: dict[str, np.ndarray] = {"token": np.flatnonzero(rows)}
        index: dict[str, np.ndarray] = {}
        up: Unit
        for down, up in itertools.pairwise(UNIT_CHAIN):
            above = self.index[up][keep[down]]
            keep[up], index[up] = np.unique(above, return_inverse=True)
        keep["episode"], index["episode"] = np.unique(self.index["episode"][keep["seq"]], return_inverse=True)
        new = np.full(self.size("seq"), -1)
        new[keep["seq"]] = np.arange(len(keep["seq"]))
        win, lose = new[self.index["win"]], new[self.index["lose"]]
        keep["pair"] = np.flatnonzero((win >= 0) & (lose >= 0))
        index["win"], index["lose"] = win[keep["pair"]], lose[keep["pair"]]
        seqs = keep["seq"]
        length = np.diff(self.start)[seqs]
        start = np.concatenate([[0], np.cumsum(length)])
        shift = start[:-1] - self.start[seqs]
        ids = np.concatenate([self.ids[self.start[s] : self.start[s + 1]] for s in seqs]) if len(seqs) else self.ids[:0]
        owner = np.searchsorted(self.start, self.texts, "right") - 1
        texts = self.texts[kept := np.isin(owner, seqs)] + shift[np.searchsorted(seqs, owner[kept])]
        seq = index["seq"][index["step"]]
        return Batch(
            columns={n: Column(u, v[keep[u]]) for n, (u, v) in self.columns.items()},
            index=index,
            ids=ids,
            start=start,
            place=self.place[keep["token"]] + shift[seq],
            model_role=tuple(self.model_role[int(s)] for s in seqs),
            names=tuple(self.names[int(s)] for s in seqs),
            loss_streams=self.loss_streams,
            spans=self.spans,
            texts=texts,
            prefixes={v: [p[s] for s in seqs] for v, p in self.prefixes.items()},
        )

    def take_sequences(self, sequences: np.ndarray) -> Batch:
        """The batch of some sequences, by bool[S] or by index."""
        mask = np.zeros(self.size("seq"), bool)
        mask[sequences] = True
        return self.take(mask[self.get("seq")])


def shallow_copy(batch: Batch) -> Batch:
    """A copy on the same arrays, whose columns can be added to without changing the original."""
    return replace(batch, columns=dict(batch.columns))
