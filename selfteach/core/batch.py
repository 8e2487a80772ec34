"""What is learned from: examples (recipes over nodes) and batches (flat ragged columns, no padding)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np

from .blocks import Array, Block, Unit
from .errors import BadValue
from .task import Ref
from .tree import Tree

UP: tuple[Unit, ...] = ("token", "step", "seq", "group", "batch")
SIDE: tuple[Unit, ...] = ("token", "step", "seq", "episode")


class Segment(NamedTuple):
    """A stretch of an example: the tokens start:stop of a stored node, or ids given as they are.

    `learn` names the stream that its chosen tokens teach (of given ids: all of them); None: context only.
    `fresh`: it begins a text of its own, which does not see what stands before it in the example.
    """

    source: Ref | tuple[int, ...]
    learn: str | None
    start: int = 0
    stop: int | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Example:
    """A recipe over nodes: hints left out, failed turns cut, corrections put in. `old_logp` stays what drew each token.

    member  whose `logp`, `value` ... the bare names mean
    key     the group whose statistics it enters
    views   other prefixes to score the same learned tokens under
    given   columns fixed earlier, one value per row of their unit: scores, replayed advantages, margins
    labels  words about the sequence (task, role, category), which become columns of strings for what keeps books by
            name
    beats   examples of the same list that it is preferred to (rows of the pair table)
    """

    parts: tuple[Segment, ...]
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
    """One optimiser batch. Credit and terms see its learned rows only; the learner also reads the whole sequences.

    Rows: N learned tokens, K steps (a sampled turn each), S sequences, G groups, P pairs.
    columns   id pos span stream version old_logp temperature reward adv ...; each a Column
    index     step[N] seq[K] group[S] batch[G] episode[S], and win lose[P] into the sequences
    ids       i32[F], all tokens of all sequences in order; `start` i64[S+1] cuts it; `place` i64[N] finds the rows in
              it
    texts     i64[>=S], where texts begin in it: a sequence is one text, or several that do not see each other
    prefixes  other contexts: view -> one i32 array per sequence (None where it has no such view)
    """

    columns: dict[str, Column]
    index: dict[str, np.ndarray]
    ids: np.ndarray
    start: np.ndarray
    place: np.ndarray
    model_role: tuple[str, ...]  # [S]
    names: tuple[str, ...]  # [S]
    loss_streams: tuple[str, ...]  # what `loss_stream` counts
    spans: tuple[str, ...]  # what `span` counts
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
        chain = SIDE if have == "episode" else UP
        if have not in chain or unit not in chain or chain.index(have) < chain.index(unit):
            raise TypeError(f"{name} is per {have}: reduce it to per {unit}")
        for u in reversed(chain[chain.index(unit) + 1 : chain.index(have) + 1]):
            x = self.index[u] if x is None else x[self.index[u]]
        return np.arange(self.size(unit)) if x is None else x

    def put(self, name: str, unit: Unit, values: Any) -> None:
        """Add or replace a column. Raises BadValue where it does not have one value per row of its unit."""
        if len(values) != self.size(unit):
            raise BadValue(f"column {name}: {len(values)} values for {self.size(unit)} rows (per {unit})")
        self.columns[name] = Column(unit, values)

    def lengths(self) -> np.ndarray:
        """i64[S]: learned tokens of each sequence."""
        return np.bincount(self.get("seq"), minlength=self.size("seq"))

    def on(self, loss_streams: Sequence[str]) -> np.ndarray:
        """bool[N]: rows of these streams."""
        wanted = [i for i, s in enumerate(self.loss_streams) if s in loss_streams]
        return np.isin(self.columns["loss_stream"].values, wanted)

    def take(self, rows: np.ndarray) -> Batch:
        """The batch of some rows (bool[N]), indices counted anew.

        Sequences, steps, groups and pairs without rows fall away.
        """
        rows = np.asarray(rows, bool)
        if rows.all():
            return self
        keep: dict[str, np.ndarray] = {"token": np.flatnonzero(rows)}
        index: dict[str, np.ndarray] = {}
        up: Unit
        for down, up in itertools.pairwise(UP):
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

    def take_sequences(self, chosen: np.ndarray) -> Batch:
        """The batch of some sequences, by bool[S] or by their numbers."""
        mask = np.zeros(self.size("seq"), bool)
        mask[chosen] = True
        return self.take(mask[self.get("seq")])


def collate(examples: Sequence[Example], find: Callable[[str], Tree]) -> Batch:
    """Turn examples into flat columns. `find` gives the tree of an episode by its id.

    An example without a learned token has no row and falls away. Columns that only some examples were given are NaN
    elsewhere. Raises BadValue for an empty example, a first token that is learned, or a given column of the wrong
    length.
    """
    spans, loss_streams = [""], list[str]()
    read = [_sequence(example, find, spans, loss_streams) for example in examples]
    kept = [i for i, s in enumerate(read) if len(s.place)]
    chosen, sequences = [examples[i] for i in kept], [read[i] for i in kept]
    start = np.cumsum([0, *(len(s.ids) for s in sequences)])
    batch = Batch(
        columns={n: Column("token", _joined([s.columns[n] for s in sequences], np.float64)) for n in ROWS},
        index=_index(examples, kept, sequences),
        ids=_joined([s.ids for s in sequences], np.int32),
        start=start,
        place=_joined([at + s.place for at, s in zip(start, sequences, strict=False)], np.int64),
        model_role=tuple(e.model_role for e in chosen),
        names=tuple(e.name or e.key for e in chosen),
        loss_streams=tuple(loss_streams),
        spans=tuple(spans),
        texts=_joined([at + np.array(s.texts) for at, s in zip(start, sequences, strict=False)], np.int64),
        prefixes=_prefixes(chosen),
    )
    for name in dict.fromkeys(n for s in read for n in s.recorded):
        unknown = [s.recorded.get(name, np.full(len(s.place), np.nan)) for s in sequences]
        batch.put(name, "token", _joined(unknown, np.float64))
    if batch.prefixes:
        # Where a view's prefix is put: before the first learned token, which a later filter of rows must not move.
        firsts = np.unique(batch.get("seq"), return_index=True)[1]
        batch.put("insertion_point", "seq", batch.get("pos")[firsts].astype(np.int64))
    _put_given(batch, chosen, [(len(s.place), s.steps) for s in sequences])
    for name in sorted({n for e in chosen for n in e.labels}):
        batch.put(name, "seq", np.array([e.labels.get(name, "") for e in chosen], object))
    return batch


ROWS = ("id", "pos", "span", "loss_stream", "version", "old_logp", "temperature")  # columns that every batch has


@dataclass(slots=True)
class _Sequence:
    """An example read out: L tokens, n of them learned.

    ids i32[L]; place i64[n], the learned ones; texts, where texts begin; steps, how many; step i64[n], which of them a
    row is of; columns and recorded: name -> [n]
    """

    ids: np.ndarray
    place: np.ndarray
    texts: list[int]
    steps: int
    step: np.ndarray
    columns: dict[str, np.ndarray]
    recorded: dict[str, np.ndarray]


def _sequence(example: Example, find: Callable[[str], Tree], spans: list[str], loss_streams: list[str]) -> _Sequence:
    if not example.parts:
        raise BadValue(f"example {example.name or example.key}: it has no segments")
    pieces, texts, length, steps, count = list[_Piece](), [0], 0, 0, 0
    columns: dict[str, list[np.ndarray]] = {n: [] for n in (*ROWS, "place", "step")}
    recorded: dict[str, list[tuple[int, np.ndarray]]] = {}
    last: Ref | None = None
    for segment in example.parts:
        piece = _read(segment, find, spans)
        if segment.fresh and length > texts[-1]:
            texts.append(length)
        if length == texts[-1] and len(piece.rows) and piece.rows[0] == 0:
            raise BadValue(
                f"example {example.name or example.key}: its first token is learned, but nothing stands before it"
            )
        for name, values in piece.recorded.items():
            recorded.setdefault(name, []).append((count, values))
        if n := len(piece.rows):
            here = segment.source if isinstance(segment.source, Ref) else None
            steps += here is None or here != last
            last = here
            piece.columns |= {
                "id": piece.ids[piece.rows],
                "pos": length - texts[-1] + piece.rows,
                "place": length + piece.rows,
                "loss_stream": np.full(n, _position(loss_streams, segment.learn or "")),
                "step": np.full(n, steps - 1),
            }
            for name, values in piece.columns.items():
                columns[name].append(values)
        pieces.append(piece)
        length += len(piece.ids)
        count += n
    joined = {name: _joined(values, np.int64) for name, values in columns.items()}
    return _Sequence(
        _joined([p.ids for p in pieces], np.int32),
        joined.pop("place"),
        texts,
        steps,
        joined.pop("step"),
        joined,
        {name: _spread(values, count) for name, values in recorded.items()},
    )


@dataclass(slots=True)
class _Piece:
    """A segment read out: its ids, which of them are learned (rows i64[n]), and what is known of those ([n])."""

    ids: np.ndarray
    rows: np.ndarray
    columns: dict[str, np.ndarray]
    recorded: dict[str, np.ndarray]


def _read(segment: Segment, find: Callable[[str], Tree], spans: list[str]) -> _Piece:
    source, learn, start, stop, _ = segment
    if not isinstance(source, Ref):
        ids = np.asarray(source, np.int32)[start:stop]
        rows = np.arange(len(ids) if learn else 0)
        known = {"span": 0, "version": -1, "old_logp": np.nan, "temperature": 1.0}
        return _Piece(ids, rows, {name: np.full(len(rows), value) for name, value in known.items()}, {})
    tree = find(source.episode)
    at = np.arange(tree.begin[source.node], tree.stop(source.node))[start:stop]
    rows = np.flatnonzero(tree.action_mask[at]) if learn else np.zeros(0, np.int64)
    learned = at[rows]
    columns = {
        "span": np.array([_position(spans, n) for n in tree.spans])[tree.span[learned]],
        "version": tree.version[learned],
        "old_logp": tree.logp[learned].astype(np.float64),
        "temperature": np.full(len(rows), _temperature(tree, source.node)),
    }
    return _Piece(
        tree.id[at], rows, columns, {f"old_{name}": values[learned] for name, values in tree.recorded.items()}
    )


def _temperature(tree: Tree, node: int) -> float:
    """What a node was drawn at; 1 where nobody drew it, NaN where the draw cannot be replayed."""
    if tree.sampling[node] < 0:
        return 1.0
    s = tree.samplings[tree.sampling[node]]
    return float(s.temperature) if s.whole and not isinstance(s.temperature, Block) and s.temperature > 0 else math.nan


def _spread(pieces: Sequence[tuple[int, np.ndarray]], size: int) -> np.ndarray:
    """f64[size]: each piece from its first row on, NaN elsewhere."""
    out = np.full(size, np.nan)
    for first, values in pieces:
        out[first : first + len(values)] = values
    return out


def _index(examples: Sequence[Example], kept: Sequence[int], sequences: Sequence[_Sequence]) -> dict[str, np.ndarray]:
    groups = _numbers([examples[i].key for i in kept])
    number = {i: seq for seq, i in enumerate(kept)}
    pairs = [(number[i], number[j]) for i in kept for j in examples[i].preferred_over if j in number]
    first = np.cumsum([0, *(s.steps for s in sequences)])
    return {
        "step": _joined([at + s.step for at, s in zip(first, sequences, strict=False)], np.int64),
        "seq": np.repeat(np.arange(len(sequences)), [s.steps for s in sequences]),
        "group": groups,
        "batch": np.zeros(int(groups.max()) + 1 if len(groups) else 0, np.int64),
        "episode": _numbers([_episode(examples[i]) for i in kept]),
        "win": np.array([w for w, _ in pairs], np.int64),
        "lose": np.array([z for _, z in pairs], np.int64),
    }


def _prefixes(examples: Sequence[Example]) -> dict[str, list[np.ndarray | None]]:
    views = sorted({v for e in examples for v in e.views})
    return {v: [np.asarray(e.views[v], np.int32) if v in e.views else None for e in examples] for v in views}


def _joined(parts: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _put_given(batch: Batch, examples: Sequence[Example], sizes: Sequence[tuple[int, int]]) -> None:
    units: dict[str, Unit] = {name: unit for e in examples for name, (unit, _) in e.given.items()}
    for name, unit in units.items():
        if unit not in ("token", "step", "seq"):
            raise BadValue(f"given column {name}: an example can give token, step or seq columns, not {unit}")
        out: list[np.ndarray] = []
        for example, (tokens, steps) in zip(examples, sizes, strict=True):
            need = {"token": tokens, "step": steps, "seq": 1}[unit]
            have, values = example.given.get(name, (unit, np.full(need, np.nan)))
            values = np.atleast_1d(np.asarray(values, np.float64))
            if have != unit or len(values) != need:
                raise BadValue(
                    f"example {example.name or example.key}: column {name} has {len(values)} values per {have}, "
                    f"its rows need {need} per {unit}"
                )
            out.append(values)
        batch.put(name, unit, np.concatenate(out) if out else np.zeros(0))


def _episode(example: Example) -> str:
    refs = [s.source.episode for s in example.parts if isinstance(s.source, Ref)]
    return refs[-1] if refs else example.name or example.key


def _position(table: list[str], name: str) -> int:
    if name not in table:
        table.append(name)
    return table.index(name)


def _numbers(keys: Sequence[str]) -> np.ndarray:
    first: dict[str, int] = {}
    return np.array([first.setdefault(k, len(first)) for k in keys], np.int64)


def fresh(batch: Batch) -> Batch:
    """A batch whose columns can be added to without touching the other's."""
    return replace(batch, columns=dict(batch.columns))
