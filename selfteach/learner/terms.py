"""The sum of an update's terms over a batch: what each term is handed, what it may not read, and how its rows are weighed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadValue
from ..core.method import Term, Update
from ..core.part import Unit
from .columns import asked
from .groups import Groups

WORDS = {u: f"{u}s" for u in ("step", "group", "pair", "episode")} | {"token": "trained tokens", "seq": "sequences", "batch": "batches"}
TIED: tuple[Unit, ...] = ("pair", "group", "episode", "batch")


@dataclass
class Told:
    """Numbers gathered over the micro-batches of a backward: sums, counts and largest values. They are read at its end alone, since on
    a GPU to read a number is to wait for it."""

    total: dict[str, Tensor | float] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    top: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, values: Tensor) -> None:
        """Enter values into a mean."""
        self.sum(name, values.sum())
        self.count[name] = self.count.get(name, 0) + values.numel()

    def sum(self, name: str, value: Tensor) -> None:
        """Enter a number into a sum."""
        self.total[name] = self.total.get(name, 0.0) + value.detach().double()

    def most(self, name: str, value: Tensor) -> None:
        """Enter a number into a maximum."""
        self.top[name] = torch.maximum(self.top[name], value) if name in self.top else value

    def metrics(self) -> dict[str, float]:
        return {n: float(v) / max(1, self.count.get(n, 1)) for n, v in self.total.items()} | {n: float(v) for n, v in self.top.items()}


def live_columns(update: Update, groups: Groups, batch: Batch) -> dict[str, np.ndarray]:
    """The columns that the terms ask of forward passes, and on which rows: name -> bool[N]."""
    out: dict[str, np.ndarray] = {}
    for term in update.terms:
        rows = batch.on(term.on)
        for column, unit in term.fn.columns.items():
            if asked(column, groups, batch) is None:
                continue
            if unit != "token":
                raise TypeError(f"term {term.fn.name}: {column} is per token: reduce it to per {unit}")
            out[column] = out.get(column, np.zeros(len(rows), bool)) | rows
    return out


def tie(update: Update) -> Unit:
    """The largest unit whose rows some term needs together: seq where sequences can be taken one by one."""
    every: list[Unit] = [u for t in update.terms for u in (t.fn.scope, t.fn.unit)]
    units: list[Unit] = [u for u in every if u in TIED]
    if any(t.denominator == "kept" for t in update.terms):
        return "batch"
    if len(set(units)) > 1:
        return "batch"  # pairs may cross groups, groups episodes
    return units[0] if units else "seq"


def check(update: Update, groups: Groups, batch: Batch) -> None:
    """Before any forward: every column is there and known on the rows that read it, every weight has its term's unit.

    Raises BadValue naming the column, the number of rows, the stream and the first sample.
    """
    for number, term in enumerate(update.terms):
        if not isinstance(term.coef, int | float):
            raise BadValue(f"term {term.fn.name}: its coefficient is still the schedule {term.coef}; the loop must make it a number first")
        rows = batch.on(term.on)
        if not rows.any():
            continue
        part = batch.take(rows)
        w = batch.columns.get(f"w{number}")
        if w is None or w.unit != term.fn.unit:
            have = "is not there" if w is None else f"is per {w.unit}"
            raise BadValue(f"term {term.fn.name}: its weights w{number} must be per {term.fn.unit}; the column {have}")
        for column in (f"w{number}", *term.fn.columns):
            if column in part.index or asked(column, groups, batch) is not None:
                continue
            part.get(column, term.fn.columns.get(column, term.fn.unit))  # raises where it is missing or finer than it is read
            _known(column, part, term.on)


def _known(column: str, part: Batch, on: Collection[str]) -> None:
    unit, values = part.columns[column]
    values = np.asarray(values)
    if values.dtype.kind != "f" or not (unknown := np.isnan(values.reshape(len(values), -1)).any(-1)).any():
        return
    row = int(np.flatnonzero(unknown)[0])
    seq = {"token": part.get("seq"), "step": part.index["seq"], "seq": np.arange(len(part.names)), "pair": part.index["win"]}.get(unit)
    if seq is None:
        seq = part.get(unit, "seq")
        row, seq = int(np.flatnonzero(seq == row)[0]), np.arange(len(part.names))
    streams = tuple(s for s in part.streams if s in on)
    raise BadValue(f"{column} unknown on {int(unknown.sum())} {WORDS[unit]} of stream {streams}, first: {part.names[seq[row]]}")


def total(update: Update, groups: Groups, batch: Batch, columns: Mapping[str, Tensor], told: Told) -> Tensor:
    """coef * sum of w * l over the terms and the rows of a batch, a scalar with the graph of `columns` (one value per row of the batch)."""
    like = next(iter(columns.values())) if columns else torch.zeros(())
    like = like.new_zeros(())
    out = like
    for number, (term, name) in enumerate(zip(update.terms, labels(update), strict=True)):
        rows = batch.on(term.on)
        if not rows.any():
            continue
        part = batch.take(rows)
        given = _given(term, groups, part, batch, columns, None if rows.all() else torch.from_numpy(np.flatnonzero(rows)).to(like.device), like)
        w = _tensor(part.columns[f"w{number}"].values, like)
        if not len(w):
            continue
        loss = float(term.coef) * _sum(term, term.fn(**given), w, part.size(term.fn.unit), told)  # type: ignore[arg-type]
        told.sum(name, loss)
        _tell(told, given)
        out = out + loss
    return out


def labels(update: Update) -> list[str]:
    """`loss/<term>` for each term; terms of one name are told apart by their streams, then by number."""
    names = [t.fn.name for t in update.terms]
    full = [n if names.count(n) == 1 else f"{n}/{'+'.join(t.on)}" for n, t in zip(names, update.terms, strict=True)]
    return ["loss/" + (n if full.count(n) == 1 else f"{n}/{i}") for i, n in enumerate(full)]


def _given(
    term: Term, groups: Groups, part: Batch, batch: Batch, columns: Mapping[str, Tensor], rows: Tensor | None, like: Tensor
) -> dict[str, Tensor]:
    """What the term's function is called with: live columns, recorded columns and indices, as tensors."""
    out: dict[str, Tensor] = {}
    for need, unit in term.fn.needs.items():
        column = term.fn.reads.get(need, need)
        if asked(column, groups, batch) is not None:
            out[need] = columns[column] if rows is None else columns[column][rows]
        else:
            out[need] = _tensor(part.get(column, unit), like)
    return out


def _tensor(values: np.ndarray, like: Tensor) -> Tensor:
    """Numbers in the model's type, indices and counts i64, truths as they are."""
    values = np.ascontiguousarray(values)
    kind = {"f": like.dtype, "b": torch.bool}.get(values.dtype.kind, torch.int64)
    return torch.from_numpy(values).to(device=like.device, dtype=kind)


def _sum(term: Term, result: Any, w: Tensor, size: int, told: Told) -> Tensor:
    """Sum of w * l; rows that the term did not keep count nothing, and under the denominator "kept" the others share their weight.

    result: l, (l, kept) or (l, kept, figures). The share that is kept and the means of the figures are told.
    """
    loss, *rest = cast("tuple[Any, ...]", result) if isinstance(result, tuple) else (result,)
    kept = rest[0] if rest else None
    for name, values in (rest[1] if len(rest) > 1 else {}).items():
        told.add(name, values.detach())
    if loss.shape != (size,):
        raise BadValue(f"term {term.fn.name}: it returned shape {tuple(loss.shape)}, its {size} {WORDS[term.fn.unit]} need ({size},)")
    if kept is None:
        if term.denominator == "kept":
            raise BadValue(f"term {term.fn.name}: its denominator is what is kept, but it does not return (l, kept)")
        return (w * loss).sum()
    told.add("kept", kept.detach().to(w.dtype))
    left = w * kept.detach().to(w.dtype)
    if term.denominator == "kept" and (share := left.sum()) != 0:
        left = left * (w.sum() / share)
    return (left * loss.masked_fill(left == 0, 0)).sum()  # a row left out may be infinite


def _tell(told: Told, given: Mapping[str, Tensor]) -> None:
    """What every run wants to know of ratios and entropies, where a term reads them anyway."""
    with torch.no_grad():
        if "logp" in given and "old_logp" in given:
            d = given["logp"] - given["old_logp"]
            told.add("approx_kl", d.exp() - 1 - d)
            told.most("ratio_max", d.max().exp())
        if "entropy" in given:
            told.add("entropy", given["entropy"])
