"""What is learned from: examples (recipes over nodes) and batches (flat ragged columns, no padding)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np

from .errors import BadValue
from .part import Array, Unit
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
    labels  words about the sequence (task, role, category), which become columns of strings for what keeps books by name
    beats   examples of the same list that it is preferred to (rows of the pair table)
    """

    parts: tuple[Segment, ...]
    member: str
    key: str
    name: str = ""
    views: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    given: Mapping[str, tuple[Unit, Any]] = field(default_factory=dict[str, "tuple[Unit, Any]"])
    beats: tuple[int, ...] = ()
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
    ids       i32[F], all tokens of all sequences in order; `start` i64[S+1] cuts it; `place` i64[N] finds the rows in it
    texts     i64[>=S], where texts begin in it: a sequence is one text, or several that do not see each other
    prefixes  other contexts: view -> one i32 array per sequence (None where it has no such view)
    """

    columns: dict[str, Column]
    index: dict[str, np.ndarray]
    ids: np.ndarray
    start: np.ndarray
    place: np.ndarray
    member: tuple[str, ...]  # [S]
    names: tuple[str, ...]  # [S]
    streams: tuple[str, ...]  # what `stream` counts
    spans: tuple[str, ...]  # what `span` counts
    texts: np.ndarray
    prefixes: dict[str, list[np.ndarray | None]] = field(default_factory=dict)

    def size(self, unit: Unit) -> int:
        """Number of rows of a unit."""
        sizes = {"token": len(self.place), "step": len(self.index["seq"]), "seq": len(self.member), "group": len(self.index["batch"])}
        if unit == "episode":
            return int(self.index["episode"].max()) + 1 if len(self.member) else 0
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

    def on(self, streams: Sequence[str]) -> np.ndarray:
        """bool[N]: rows of these streams."""
        wanted = [i for i, s in enumerate(self.streams) if s in streams]
        return np.isin(self.columns["stream"].values, wanted)

    def take(self, rows: np.ndarray) -> Batch:
        """The batch of some rows (bool[N]), indices counted anew. Sequences, steps, groups and pairs without rows fall away."""
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
            member=tuple(self.member[int(s)] for s in seqs),
            names=tuple(self.names[int(s)] for s in seqs),
            streams=self.streams,
            spans=self.spans,
            texts=texts,
            prefixes={v: [p[s] for s in seqs] for v, p in self.prefixes.items()},
        )

    def take_sequences(self, chosen: np.ndarray) -> Batch:
        """The batch of some sequences, by bool[S] or by their numbers."""
        mask = np.zeros(self.size("seq"), bool)
        mask[chosen] = True
        return self.take(mask[self.get("seq")])


def gather(examples: Sequence[Example], find: Callable[[str], Tree]) -> Batch:
    """Turn examples into flat columns. `find` gives the tree of an episode by its id.

    An example without a learned token has no row and falls away. Columns that only some examples were given are NaN elsewhere.
    Raises BadValue for an empty example, or a given column of the wrong length.
    """
    spans, streams = [""], list[str]()
    rows: dict[str, list[np.ndarray]] = {n: [] for n in ("id", "pos", "span", "stream", "version", "old_logp", "temperature")}
    recorded: dict[str, list[tuple[int, np.ndarray]]] = {}
    ids: list[np.ndarray] = []
    place: list[np.ndarray] = []
    step_of: list[np.ndarray] = []
    seq_of: list[int] = []
    sizes: list[tuple[int, int]] = []  # learned tokens, steps of each sequence
    kept: list[int] = []
    texts: list[int] = []
    flat = steps = count = 0
    for number, example in enumerate(examples):
        if not example.parts:
            raise BadValue(f"example {example.name or example.key}: it has no segments")
        begin, learned, own_steps = flat, 0, 0
        last: Any = None
        pieces: list[np.ndarray] = []
        own_texts = [flat]
        for source, learn, start, stop, fresh in example.parts:
            own_texts += [flat] * (fresh and flat > own_texts[-1])
            if isinstance(source, Ref):
                tree = find(source.episode)
                a, z = tree.begin[source.node], tree.stop(source.node)
                where = np.arange(a, z)[start:stop]
                piece = tree.id[where]
                take = np.flatnonzero(tree.chosen[where]) if learn else np.zeros(0, np.int64)
                s = tree.samplings[tree.sampling[source.node]] if tree.sampling[source.node] >= 0 else None
                known = s is None or (s.whole and not callable(s.temperature) and float(s.temperature) > 0)  # type: ignore[arg-type]
                temperature = (1.0 if s is None else float(s.temperature)) if known else np.nan  # type: ignore[arg-type]
                name_of = np.array([_position(spans, n) for n in tree.spans])
                values = {
                    "span": name_of[tree.span[where]][take],
                    "version": tree.version[where][take],
                    "old_logp": tree.logp[where][take].astype(np.float64),
                }
                for name, column in tree.recorded.items():
                    recorded.setdefault("old_" + name, []).append((count + learned, column[where][take]))
            else:
                piece = np.asarray(source, np.int32)[start:stop]
                take = np.arange(len(piece)) if learn else np.zeros(0, np.int64)
                n = len(take)
                values = {"span": np.zeros(n, int), "version": np.full(n, -1), "old_logp": np.full(n, np.nan)}
                temperature = 1.0
            if flat == own_texts[-1] and len(take) and take[0] == 0:
                raise BadValue(f"example {example.name or example.key}: its first token is learned, but nothing stands before it")
            if len(take):
                if source != last or not isinstance(source, Ref):
                    steps += 1
                    own_steps += 1
                    seq_of.append(len(kept))
                last = source
                values |= {
                    "id": piece[take],
                    "pos": flat - own_texts[-1] + take,
                    "stream": np.full(len(take), _position(streams, learn or "")),
                    "temperature": np.full(len(take), temperature),
                }
                for name, v in values.items():
                    rows[name].append(v)
                place.append(flat + take)
                step_of.append(np.full(len(take), steps - 1))
                learned += len(take)
            pieces.append(piece)
            flat += len(piece)
        if not learned:
            flat = begin
            continue
        kept.append(number)
        ids += pieces
        texts += own_texts
        sizes.append((learned, own_steps))
        count += learned
    chosen = [examples[i] for i in kept]
    keys = _numbers([e.key for e in chosen])
    new = {old: i for i, old in enumerate(kept)}
    pairs = [(new[i], new[j]) for i in kept for j in examples[i].beats if j in new]
    total = np.cumsum([0] + [sum(len(_ids(s, find)) for s in e.parts) for e in chosen])
    index = {
        "step": _joined(step_of, np.int64),
        "seq": np.array(seq_of, np.int64),
        "group": keys,
        "batch": np.zeros(int(keys.max()) + 1 if len(keys) else 0, np.int64),
        "episode": _numbers([_episode(e) for e in chosen]),
        "win": np.array([w for w, _ in pairs], np.int64),
        "lose": np.array([z for _, z in pairs], np.int64),
    }
    batch = Batch(
        columns={n: Column("token", _joined(v, np.float64)) for n, v in rows.items()},
        index=index,
        ids=_joined(ids, np.int32).astype(np.int32),
        start=total,
        place=_joined(place, np.int64),
        member=tuple(e.member for e in chosen),
        names=tuple(e.name or e.key for e in chosen),
        streams=tuple(streams),
        spans=tuple(spans),
        texts=np.array(texts, np.int64),
        prefixes={
            v: [np.asarray(e.views[v], np.int32) if v in e.views else None for e in chosen] for v in sorted({v for e in chosen for v in e.views})
        },
    )
    for name, parts in recorded.items():
        values = np.full(count, np.nan)
        for at, v in parts:
            values[at : at + len(v)] = v
        batch.put(name, "token", values)
    if batch.prefixes:
        # Where a view's prefix is put: before the first learned token, which a later filter of rows must not move.
        firsts = np.unique(batch.get("seq"), return_index=True)[1]
        batch.put("graft", "seq", batch.get("pos")[firsts].astype(np.int64))
    _given(batch, chosen, sizes)
    for name in sorted({n for e in chosen for n in e.labels}):
        batch.put(name, "seq", np.array([e.labels.get(name, "") for e in chosen], object))
    return batch


def _joined(parts: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _given(batch: Batch, examples: Sequence[Example], sizes: Sequence[tuple[int, int]]) -> None:
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
                    f"example {example.name or example.key}: column {name} has {len(values)} values per {have}, its rows need {need} per {unit}"
                )
            out.append(values)
        batch.put(name, unit, np.concatenate(out) if out else np.zeros(0))


def _ids(segment: Segment, find: Callable[[str], Tree]) -> np.ndarray | tuple[int, ...]:
    if isinstance(segment.source, Ref):
        tree = find(segment.source.episode)
        return tree.id[tree.begin[segment.source.node] : tree.stop(segment.source.node)][segment.start : segment.stop]
    return segment.source[segment.start : segment.stop]


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
