"""Batches split into minibatches, or without rows that are dropped or have no gradient."""

from __future__ import annotations

import numpy as np

from ..core import random_keys
from ..core.batch import Batch, shallow_copy
from ..core.method import Update


def split_minibatches(batch: Batch, update: Update, where: tuple[object, ...]) -> list[Batch]:
    """An update's minibatches of a batch, shuffled at the RNG key `where`; groups stay whole where a term needs them
    whole.
    """
    if update.minibatches == 1:
        return [shallow_copy(batch)]
    whole = any(t.fn.scope in ("group", "pair", "batch", "episode") for t in update.terms)
    unit = batch.index["group"] if whole else np.arange(batch.size("seq"))
    count = int(unit.max()) + 1
    order = random_keys.generator(*where).permutation(count)
    parts = [np.isin(unit, piece) for piece in np.array_split(order, min(update.minibatches, count))]
    return [shallow_copy(batch.take_sequences(np.flatnonzero(p))) for p in parts]


def drop_zero_advantage(batch: Batch, update: Update) -> Batch:
    """The batch without sequences of zero gradient: those in which the column that every term declares by `zero_when`
    is zero.
    """
    nonzero = np.zeros(batch.size("token"), bool)
    for term in update.terms:
        column = getattr(term.fn.fn, "zero_when_column", None)
        if column is None or term.denominator == "kept":
            return batch
        nonzero |= (batch.get(term.fn.reads.get(column, column)) != 0) & batch.on(term.on)
    seq = batch.get("seq")
    keep = np.zeros(batch.size("seq"), bool)
    keep[seq[nonzero]] = True
    return batch.take(keep[seq])


def without(batch: Batch, rows: np.ndarray, reason: str, reasons: dict[str, str]) -> Batch:
    """The batch without some rows; `reasons` gets the names of sequences that lose all theirs."""
    if not rows.any():
        return batch
    left = batch.take(~rows)
    reasons.update(dict.fromkeys(set(batch.names) - set(left.names), reason))
    return left
