"""The loss of an update: the weighted sum of its terms over a batch, the arguments of each term, and their checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.blocks import Unit, measures
from ..core.errors import BadValue
from ..core.method import Term, Update
from ..core.user_code import user_code
from .columns import live_column_name
from .param_groups import ParamGroups

UNIT_NAMES = {u: f"{u}s" for u in ("step", "group", "pair", "episode")} | {
    "token": "trained tokens",
    "seq": "sequences",
    "batch": "batches",
}
INDIVISIBLE: tuple[Unit, ...] = ("pair", "group", "episode", "batch")


@dataclass
class MetricAccumulator:
    """Sums, counts and maxima over the micro-batches of a backward.

    They are read at its end only, since reading a number from a GPU waits for it.
    """

    sums: dict[str, Tensor | float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, values: Tensor) -> None:
        """Add values to the mean `name`."""
        self.sum(name, values.sum())
        self.counts[name] = self.counts.get(name, 0) + values.numel()

    def sum(self, name: str, value: Tensor) -> None:
        """Add a number to the sum `name`."""
        self.sums[name] = self.sums.get(name, 0.0) + value.detach().double()

    def maximum(self, name: str, value: Tensor) -> None:
        """Add a number to the maximum `name`."""
        self.maxima[name] = torch.maximum(self.maxima[name], value) if name in self.maxima else value

    def update(self, other: MetricAccumulator) -> None:
        """Add what another has gathered."""
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, count in other.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        for name, value in other.maxima.items():
            self.maximum(name, value)

    def on_cpu(self) -> MetricAccumulator:
        """The same numbers on the processor."""
        sums: dict[str, Tensor | float] = {n: v.cpu() if isinstance(v, Tensor) else v for n, v in self.sums.items()}
        return MetricAccumulator(sums, self.counts, {n: v.cpu() for n, v in self.maxima.items()})

    def metrics(self) -> dict[str, float]:
        """Means, sums and maxima by name; a mean of nothing is left out."""
        means = {n: float(v) / count for n, v in self.sums.items() if (count := self.counts.get(n, 1))}
        return means | {n: float(v) for n, v in self.maxima.items()}


def live_columns(update: Update, groups: ParamGroups, batch: Batch) -> dict[str, np.ndarray]:
    """The columns of terms that forward passes compute, and on which rows: name -> bool[N]."""
    out: dict[str, np.ndarray] = {}
    for term in update.terms:
        rows = batch.on(term.on)
        for column, unit in term.fn.columns.items():
            if live_column_name(column, groups, batch) is None:
                continue
            if unit != "token":
                raise TypeError(f"term {term.fn.name}: {column} is per token: reduce it to per {unit}")
            out[column] = out.get(column, np.zeros(len(rows), bool)) | rows
    return out


def indivisible_unit(update: Update) -> Unit:
    """The unit that micro-batches may not split; seq where every term can be computed sequence by sequence."""
    every: list[Unit] = [u for t in update.terms for u in (t.fn.scope, t.fn.unit)]
    units: list[Unit] = [u for u in every if u in INDIVISIBLE]
    if any(t.denominator == "kept" for t in update.terms):
        return "batch"
    if len(set(units)) > 1:
        return "batch"  # pairs may cross groups, groups episodes
    return units[0] if units else "seq"


def check_update(update: Update, groups: ParamGroups, batch: Batch) -> None:
    """Check, before any forward, that each column is known on the rows that read it and loss weights fit their terms.

    Raises BadValue naming the column, the number of rows, the loss stream and the first sample.
    """
    for number, term in enumerate(update.terms):
        if not isinstance(term.coef, int | float):
            raise BadValue(
                f"term {term.fn.name}: its coefficient is still the schedule {term.coef}; give its value at this step"
            )
        rows = batch.on(term.on)
        if not rows.any():
            continue
        part = batch.take(rows)
        w = batch.columns.get(f"w{number}")
        if w is None or w.unit != term.fn.unit:
            have = "is not there" if w is None else f"is per {w.unit}"
            raise BadValue(f"term {term.fn.name}: its weights w{number} must be per {term.fn.unit}; the column {have}")
        for column in (f"w{number}", *term.fn.columns):
            if column in part.index or live_column_name(column, groups, batch) is not None:
                continue
            # Raises where it is missing, or of a finer unit than the term reads.
            part.get(column, term.fn.columns.get(column, term.fn.unit))
            _check_known(column, part, term.on)


def _check_known(column: str, part: Batch, on: Collection[str]) -> None:
    unit, values = part.columns[column]
    values = np.asarray(values)
    if (
        values.dtype.kind != "f"
        or not len(values)
        or not (unknown := np.isnan(values.reshape(len(values), -1)).any(-1)).any()
    ):
        return
    row = int(np.flatnonzero(unknown)[0])
    seq = {
        "token": part.get("seq"),
        "step": part.index["seq"],
        "seq": np.arange(len(part.names)),
        "pair": part.index["win"],
    }.get(unit)
    if seq is None:
        seq = part.get(unit, "seq")
        row, seq = int(np.flatnonzero(seq == row)[0]), np.arange(len(part.names))
    loss_streams = tuple(s for s in part.loss_streams if s in on)
    raise BadValue(
        f"{column} unknown on {int(unknown.sum())} {UNIT_NAMES[unit]} of stream {loss_streams}, "
        f"first: {part.names[seq[row]]}"
    )


def weighted_loss(
    update: Update, groups: ParamGroups, batch: Batch, columns: Mapping[str, Tensor], accumulator: MetricAccumulator
) -> Tensor:
    """The loss, a scalar: sum over terms of coef * sum over rows of w * l.

    columns: live columns, one value per row of the batch, whose graph it has. Adds the terms' metrics to `accumulator`.
    """
    like = next(iter(columns.values())) if columns else torch.zeros(())
    like = like.new_zeros(())
    out = like
    for number, (term, name) in enumerate(zip(update.terms, term_labels(update), strict=True)):
        rows = batch.on(term.on)
        if not rows.any():
            continue
        part = batch.take(rows)
        given = _term_arguments(
            term,
            groups,
            part,
            batch,
            columns,
            None if rows.all() else torch.from_numpy(np.flatnonzero(rows)).to(like.device),
            like,
        )
        w = _tensor(part.columns[f"w{number}"].values, like)
        if not len(w):
            continue
        with user_code(f"term {term.fn.name}"):
            result = term.fn(**given)
            loss = float(term.coef) * _sum(term, result, w, part.size(term.fn.unit), accumulator)  # type: ignore[arg-type]
        accumulator.sum(name, loss)
        _add_common_metrics(accumulator, given)
        with torch.no_grad():
            for metric, values in measures(term.fn, given).items():
                accumulator.add(metric, values)
        out = out + loss
    return out


def term_labels(update: Update) -> list[str]:
    """The metric name `loss/<term>` of each term; terms of one name get their streams, then a number."""
    names = [t.fn.name for t in update.terms]
    full = [n if names.count(n) == 1 else f"{n}/{'+'.join(t.on)}" for n, t in zip(names, update.terms, strict=True)]
    return ["loss/" + (n if full.count(n) == 1 else f"{n}/{i}") for i, n in enumerate(full)]


def _term_arguments(
    term: Term,
    groups: ParamGroups,
    part: Batch,
    batch: Batch,
    columns: Mapping[str, Tensor],
    rows: Tensor | None,
    like: Tensor,
) -> dict[str, Tensor]:
    """The arguments of a term's function: live columns, recorded columns and indices, as tensors."""
    out: dict[str, Tensor] = {}
    for need, unit in term.fn.needs.items():
        column = term.fn.reads.get(need, need)
        if live_column_name(column, groups, batch) is not None:
            out[need] = columns[column] if rows is None else columns[column][rows]
        else:
            out[need] = _tensor(part.get(column, unit), like)
    return out


def _tensor(values: np.ndarray, like: Tensor) -> Tensor:
    """An array as a tensor on the device of `like`: floats in its dtype, integers i64, booleans as they are."""
    values = np.ascontiguousarray(values)
    kind = {"f": like.dtype, "b": torch.bool}.get(values.dtype.kind, torch.int64)
    return torch.from_numpy(values).to(device=like.device, dtype=kind)


def _sum(term: Term, result: Any, w: Tensor, size: int, accumulator: MetricAccumulator) -> Tensor:
    """The sum of w * l over the rows that a term keeps.

    result: l [size], (l, kept) or (l, kept, metrics). Rows not kept have weight 0; under the denominator "kept" the
    others are scaled up to the whole weight. Adds the share kept and the means of the metrics to `accumulator`.
    """
    loss, *rest = cast("tuple[Any, ...]", result) if isinstance(result, tuple) else (result,)
    kept = rest[0] if rest else None
    metrics = rest[1] if len(rest) > 1 else {}
    for name, values in metrics.items():
        accumulator.add(name, values.detach())
    if loss.shape != (size,):
        raise BadValue(
            f"term {term.fn.name}: it returned shape {tuple(loss.shape)}, its {size} {UNIT_NAMES[term.fn.unit]} need "
            f"({size},)"
        )
    if kept is None:
        if term.denominator == "kept":
            raise BadValue(f'term {term.fn.name}: its denominator is "kept", but it does not return (l, kept)')
        return (w * loss).sum()
    if "clip_fraction" not in metrics:
        accumulator.add("kept_fraction", kept.detach().to(w.dtype))
    left = w * kept.detach().to(w.dtype)
    if term.denominator == "kept" and (share := left.sum()) != 0:
        left = left * (w.sum() / share)
    return (left * loss.masked_fill(left == 0, 0)).sum()  # a row not kept may be infinite


def _add_common_metrics(accumulator: MetricAccumulator, given: Mapping[str, Tensor]) -> None:
    """Add approx_kl and ratio_max of logp and old_logp, advantage_abs, and entropy, of the terms that read them."""
    with torch.no_grad():
        if "adv" in given:
            accumulator.add("advantage_abs", given["adv"].abs())
        if "logp" in given and "old_logp" in given:
            d = given["logp"] - given["old_logp"]
            accumulator.add("approx_kl", d.exp() - 1 - d)
            accumulator.maximum("ratio_max", d.max().exp())
        if "entropy" in given:
            accumulator.add("entropy", given["entropy"])
