"""Collating: examples to one batch of flat ragged columns, without padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .batch import Batch, Column, Example, Segment
from .blocks import Block, Unit
from .errors import BadValue
from .task import Ref
from .tree import Tree

ROWS = ("id", "pos", "span", "loss_stream", "version", "old_logp", "temperature")  # columns of every batch


def collate(examples: Sequence[Example], find: Callable[[str], Tree]) -> Batch:
    """Turn examples into flat columns. `find` gives the tree of an episode by its id.

    An example without a learned token has no row and is left out. A column given by some examples only is NaN
    elsewhere. Raises BadValue for an empty example, a first token that is learned, or a given column of the wrong
    length.
    """
    spans, loss_streams = [""], list[str]()
    read = [_sequence(example, find, spans, loss_streams) for example in examples]
    kept = [i for i, s in enumerate(read) if len(s.place)]
    learned, sequences = [examples[i] for i in kept], [read[i] for i in kept]
    start = np.cumsum([0, *(len(s.ids) for s in sequences)])
    batch = Batch(
        columns={n: Column("token", _joined([s.columns[n] for s in sequences], np.float64)) for n in ROWS},
        index=_index(examples, kept, sequences),
        ids=_joined([s.ids for s in sequences], np.int32),
        start=start,
        place=_joined([at + s.place for at, s in zip(start, sequences, strict=False)], np.int64),
        model_role=tuple(e.model_role for e in learned),
        names=tuple(e.name or e.key for e in learned),
        loss_streams=tuple(loss_streams),
        spans=tuple(spans),
        texts=_joined([at + np.array(s.texts) for at, s in zip(start, sequences, strict=False)], np.int64),
        prefixes=_prefixes(learned),
    )
    for name in dict.fromkeys(n for s in read for n in s.recorded):
        values = [s.recorded.get(name, np.full(len(s.place), np.nan)) for s in sequences]
        batch.put(name, "token", _joined(values, np.float64))
    if batch.prefixes:
        # The position of the first learned token, stored because a later filter of rows may drop that token.
        firsts = np.unique(batch.get("seq"), return_index=True)[1]
        batch.put("insertion_point", "seq", batch.get("pos")[firsts].astype(np.int64))
    _put_given(batch, learned, [(len(s.place), s.steps) for s in sequences])
    for name in sorted({n for e in learned for n in e.labels}):
        batch.put(name, "seq", np.array([e.labels.get(name, "") for e in learned], object))
    return batch


@dataclass(slots=True)
class _Sequence:
    """An example read out: L tokens, n of them learned.

    ids i32[L]; place i64[n], indices of the learned ones; texts: where texts begin; steps: their number; step i64[n]:
    the step of each row; columns and recorded: name -> [n]
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
                f"example {example.name or example.key}: its first token is learned, but there is no token before it"
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
                "loss_stream": np.full(n, _index_of(loss_streams, segment.learn or "")),
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
    """A segment read out: its ids, the indices of the learned ones (rows i64[n]), and their columns ([n])."""

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
        "span": np.array([_index_of(spans, n) for n in tree.spans])[tree.span[learned]],
        "version": tree.version[learned],
        "old_logp": tree.logp[learned].astype(np.float64),
        "temperature": np.full(len(rows), _temperature(tree, source.node)),
    }
    return _Piece(
        tree.id[at], rows, columns, {f"old_{name}": values[learned] for name, values in tree.recorded.items()}
    )


def _temperature(tree: Tree, node: int) -> float:
    """The temperature that a node was sampled at; 1 where it was not sampled, NaN where the draw cannot be replayed."""
    if tree.sampling[node] < 0:
        return 1.0
    s = tree.samplings[tree.sampling[node]]
    return (
        float(s.temperature)
        if s.untruncated and not isinstance(s.temperature, Block) and s.temperature > 0
        else math.nan
    )


def _spread(pieces: Sequence[tuple[int, np.ndarray]], size: int) -> np.ndarray:
    """f64[size]: the values of (first row, values) pieces, NaN elsewhere."""
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


def _index_of(names: list[str], name: str) -> int:
    """The index of a name in a list, appended where it is not there."""
    if name not in names:
        names.append(name)
    return names.index(name)


def _numbers(keys: Sequence[str]) -> np.ndarray:
    first: dict[str, int] = {}
    return np.array([first.setdefault(k, len(first)) for k in keys], np.int64)
