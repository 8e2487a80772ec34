"""Collating: examples to one batch of flat ragged columns, without padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .batch import Batch, Column, Example
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
    pool = _TokenPool(find)
    table = _SegmentTable.of(examples, pool)
    tokens = pool.columns()

    # Every token of every segment, in order: its index in the pool, its segment, and whether it is learned.
    at, segment = _ranges(table.first, table.size), np.repeat(np.arange(len(table.size)), table.size)
    learned = tokens["action_mask"][at] & table.is_learned[segment]
    rows_of_segment = np.bincount(segment[learned], minlength=len(table.size))
    rows_of_example = np.zeros(len(examples), np.int64)
    np.add.at(rows_of_example, table.owner, rows_of_segment)
    with_rows = rows_of_example > 0
    kept = np.flatnonzero(with_rows)
    if len(kept) < len(examples):
        inside = with_rows[table.owner]
        at, segment, learned = (x[inside[segment]] for x in (at, segment, learned))
        table = table.where(inside)
        rows_of_segment, segment = rows_of_segment[inside], np.cumsum(inside)[segment] - 1

    place = np.flatnonzero(learned)
    row, of_row = at[place], segment[place]  # of each learned token: its index in the pool, its segment
    begin = np.cumsum(table.size) - table.size
    text = np.maximum.accumulate(np.where(table.begins_text, begin, 0)) if len(begin) else begin
    pos = place - text[of_row]
    sequences = [examples[i] for i in kept.tolist()]
    if (pos == 0).any():
        bad = examples[int(table.owner[of_row[pos == 0][0]])]
        raise BadValue(f"example {bad.name or bad.key}: its first token is learned, but there is no token before it")
    step, steps = _steps(table, rows_of_segment, len(examples))
    loss_streams = list(dict.fromkeys(table.learn[i] or "" for i in np.flatnonzero(rows_of_segment).tolist()))
    stream = np.array([loss_streams.index(label) if label in loss_streams else -1 for label in table.learn], np.int64)
    columns = {
        "id": tokens["id"][row],
        "pos": pos,
        "span": tokens["span"][row],
        "loss_stream": stream[of_row],
        "version": tokens["version"][row],
        "old_logp": tokens["logp"][row].astype(np.float64),
        "temperature": table.temperature[of_row],
    }
    batch = Batch(
        columns={n: Column("token", columns[n]) for n in ROWS},
        index=_index(examples, kept.tolist(), step[of_row], steps[kept]),
        ids=tokens["id"][at],
        start=np.cumsum([0, *np.bincount(table.owner, table.size, len(examples)).astype(np.int64)[kept].tolist()]),
        place=place,
        model_role=tuple(e.model_role for e in sequences),
        names=tuple(e.name or e.key for e in sequences),
        loss_streams=tuple(loss_streams),
        spans=tuple(pool.spans),
        texts=begin[table.begins_text],
        prefixes=_prefixes(sequences),
    )
    for name in pool.recorded:
        batch.put(f"old_{name}", "token", tokens[f"recorded/{name}"][row].astype(np.float64))
    if batch.prefixes:
        # The position of the first learned token, stored because a later filter of rows may drop that token.
        firsts = np.unique(batch.get("seq"), return_index=True)[1]
        batch.put("insertion_point", "seq", batch.get("pos")[firsts].astype(np.int64))
    _put_given(batch, sequences, rows_of_example[kept].tolist(), steps[kept].tolist())
    for name in sorted({n for e in sequences for n in e.labels}):
        batch.put(name, "seq", np.array([e.labels.get(name, "") for e in sequences], object))
    return batch


class _TokenPool:
    """The tokens of all trees and of all given ids that a batch reads, end to end, so that each column is read at once.

    spans     names of all spans, in the order in which they were met
    recorded  names of the quantities that the trees recorded, in that order too
    """

    def __init__(self, find: Callable[[str], Tree]) -> None:
        self.find = find
        self.spans = [""]
        self.recorded: list[str] = []
        self.trees: dict[str, tuple[Tree, int]] = {}  # episode -> its tree, and where that begins
        self.size = 0
        self._pieces: list[Tree | np.ndarray] = []
        self._span_names = {"": 0}

    def tree(self, episode: str) -> tuple[Tree, int]:
        """The tree of an episode, and the index of its first token."""
        if episode not in self.trees:
            tree = self.find(episode)
            self.trees[episode] = tree, self._add(tree)
            for name in tree.spans:
                if name not in self._span_names:
                    self._span_names[name] = len(self.spans)
                    self.spans.append(name)
            self.recorded += [name for name in tree.recorded if name not in self.recorded]
        return self.trees[episode]

    def given(self, ids: Sequence[int]) -> int:
        """The index of the first of some ids, which no tree holds."""
        return self._add(np.asarray(ids, np.int32))

    def _add(self, piece: Tree | np.ndarray) -> int:
        self._pieces.append(piece)
        self.size += len(piece)
        return self.size - len(piece)

    def columns(self) -> dict[str, np.ndarray]:
        """Columns of all tokens, by their names in Tree, `span` by the pool's names; of given ids every one is under
        the action mask.
        """
        parts: dict[str, list[np.ndarray]] = {n: [] for n in ("id", "action_mask", "logp", "version", "span")}
        for name in self.recorded:
            parts[f"recorded/{name}"] = []
        for piece in self._pieces:
            n = len(piece)
            if isinstance(piece, Tree):
                for name in ("id", "action_mask", "logp", "version"):
                    parts[name].append(getattr(piece, name))
                span = (
                    np.array([self._span_names[name] for name in piece.spans])[piece.span] if piece.spans[1:] else None
                )
                for name in self.recorded:
                    parts[f"recorded/{name}"].append(
                        piece.recorded[name][:n] if name in piece.recorded else np.full(n, np.nan)
                    )
            else:
                parts["id"].append(piece)
                parts["action_mask"].append(np.ones(n, bool))
                parts["logp"].append(np.full(n, np.nan, np.float32))
                parts["version"].append(np.full(n, -1, np.int32))
                span = None
                for name in self.recorded:
                    parts[f"recorded/{name}"].append(np.full(n, np.nan))
            parts["span"].append(np.zeros(n, np.int64) if span is None else span)
        dtypes = {"id": np.int32, "action_mask": np.bool_, "logp": np.float32, "version": np.int32, "span": np.int64}
        return {name: _joined(values, dtypes.get(name, np.float64)) for name, values in parts.items()}


@dataclass(slots=True)
class _SegmentTable:
    """The segments of some examples, in order.

    owner        i64[K]  the example
    first, size  i64[K]  its first token in the pool, and how many
    is_learned   bool[K] whether its tokens under the action mask are learned
    begins_text  bool[K] whether it is the first of a text
    temperature  f64[K]  at which it was sampled (`_temperature`)
    learn        [K]     its loss stream
    source       [K]     the node that it is of; None: given ids
    """

    owner: np.ndarray
    first: np.ndarray
    size: np.ndarray
    is_learned: np.ndarray
    begins_text: np.ndarray
    temperature: np.ndarray
    learn: list[str | None]
    source: list[Ref | None]

    @staticmethod
    def of(examples: Sequence[Example], pool: _TokenPool) -> _SegmentTable:
        """The table of some examples, whose tokens it puts into the pool. Raises BadValue for an empty example."""
        numbers: list[tuple[int, int, int, bool, bool, float]] = []
        learn: list[str | None] = []
        source: list[Ref | None] = []
        for owner, example in enumerate(examples):
            if not example.segments:
                raise BadValue(f"example {example.name or example.key}: it has no segments")
            length = -1  # of the present text; there is none yet
            for segment in example.segments:
                if isinstance(segment.source, Ref):
                    node = segment.source.node
                    tree, offset = pool.tree(segment.source.episode)
                    first, stop, _ = slice(segment.start, segment.stop).indices(tree.size(node))
                    begin, temperature = offset + tree.begin[node] + first, _temperature(tree, node)
                else:
                    first, stop, _ = slice(segment.start, segment.stop).indices(len(segment.source))
                    begin, temperature = pool.given(segment.source[first:stop]), 1.0
                size = max(0, stop - first)
                begins_text = length < 0 or (segment.fresh and length > 0)
                length = size if begins_text else length + size
                numbers.append((owner, begin, size, bool(segment.learn), begins_text, temperature))
                learn.append(segment.learn)
                source.append(segment.source if isinstance(segment.source, Ref) else None)
        columns = list(zip(*numbers, strict=True)) or [()] * 6
        dtypes = np.int64, np.int64, np.int64, np.bool_, np.bool_, np.float64
        return _SegmentTable(*(np.array(c, d) for c, d in zip(columns, dtypes, strict=True)), learn, source)  # type: ignore[misc]

    def where(self, kept: np.ndarray) -> _SegmentTable:
        """The segments of a mask, bool[K]."""
        return _SegmentTable(
            self.owner[kept],
            self.first[kept],
            self.size[kept],
            self.is_learned[kept],
            self.begins_text[kept],
            self.temperature[kept],
            [x for x, keep in zip(self.learn, kept, strict=True) if keep],
            [x for x, keep in zip(self.source, kept, strict=True) if keep],
        )


def _ranges(first: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The numbers first .. first + size - 1 of each pair, end to end."""
    return np.arange(size.sum()) + np.repeat(first - (np.cumsum(size) - size), size)


def _steps(table: _SegmentTable, rows: np.ndarray, n_examples: int) -> tuple[np.ndarray, np.ndarray]:
    """The step of each segment among those of the batch, i64[K] (-1: it has no rows), and how many each example has.

    Segments of one node that follow each other are one step; given ids are one by themselves.
    """
    step, steps = np.full(len(rows), -1), np.zeros(n_examples, np.int64)
    count, owner, last = 0, -1, None
    for k in np.flatnonzero(rows).tolist():
        if table.owner[k] != owner or table.source[k] is None or table.source[k] != last:
            count += 1
            steps[table.owner[k]] += 1
        owner, last = table.owner[k], table.source[k]
        step[k] = count - 1
    return step, steps


def _temperature(tree: Tree, node: int) -> float:
    """The temperature that a node was sampled at; 1 where it was not sampled, NaN where the draw cannot be replayed."""
    if tree.sampling[node] < 0:
        return 1.0
    s = tree.samplings[tree.sampling[node]]
    return (
        float(s.temperature)
        if s.untruncated and s.steering is None and not isinstance(s.temperature, Block) and s.temperature > 0
        else math.nan
    )


def _index(
    examples: Sequence[Example], kept: Sequence[int], step: np.ndarray, steps: np.ndarray
) -> dict[str, np.ndarray]:
    """The indices of a batch of the examples `kept`; of each row its step, of each sequence the number of its steps."""
    groups = _numbers([examples[i].key for i in kept])
    number = {i: seq for seq, i in enumerate(kept)}
    pairs = [(number[i], number[j]) for i in kept for j in examples[i].preferred_over if j in number]
    return {
        "step": step,
        "seq": np.repeat(np.arange(len(kept)), steps),
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


def _put_given(batch: Batch, examples: Sequence[Example], tokens: Sequence[int], steps: Sequence[int]) -> None:
    """Put the columns that examples give; of each its learned tokens, and its steps."""
    units: dict[str, Unit] = {name: unit for e in examples for name, (unit, _) in e.given.items()}
    for name, unit in units.items():
        if unit not in ("token", "step", "seq"):
            raise BadValue(f"given column {name}: an example can give token, step or seq columns, not {unit}")
        given = [example.given.get(name) for example in examples]
        if all(one is not None and one[0] == "seq" and isinstance(one[1], float) for one in given):
            batch.put(name, unit, np.array([one[1] for one in given if one]))  # the usual case, at once
            continue
        out: list[np.ndarray] = []
        needs = {"token": tokens, "step": steps, "seq": [1] * len(examples)}[unit]
        for example, need in zip(examples, needs, strict=True):
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
    refs = [s.source.episode for s in example.segments if isinstance(s.source, Ref)]
    return refs[-1] if refs else example.name or example.key


def _numbers(keys: Sequence[str]) -> np.ndarray:
    first: dict[str, int] = {}
    return np.array([first.setdefault(k, len(first)) for k in keys], np.int64)
