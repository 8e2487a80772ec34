"""Batches made smaller: dealt into minibatches, or without the rows that are dropped or cannot move a weight."""

from __future__ import annotations

import numpy as np

from ..core import random_keys
from ..core.batch import Batch, fresh
from ..core.method import Update


def split_minibatches(batch: Batch, update: Update, where: tuple[object, ...]) -> list[Batch]:
    """An update's minibatches of a batch, shuffled at an RNG key; groups stay whole where a term asks for them."""
    if update.minibatches == 1:
        return [fresh(batch)]
    whole = any(t.fn.scope in ("group", "pair", "batch", "episode") for t in update.terms)
    unit = batch.index["group"] if whole else np.arange(batch.size("seq"))
    count = int(unit.max()) + 1
    order = random_keys.generator(*where).permutation(count)
    parts = [np.isin(unit, piece) for piece in np.array_split(order, min(update.minibatches, count))]
    return [fresh(batch.take_sequences(np.flatnonzero(p))) for p in parts]


def drop_zero_advantage(batch: Batch, update: Update) -> Batch:
    """Leave out sequences that cannot move any weight: every term says that its gradient vanishes with a column that is
    zero there.
    """
    loud = np.zeros(batch.size("token"), bool)
    for term in update.terms:
        column = getattr(term.fn.fn, "zero_when_column", None)
        if column is None or term.denominator == "kept":
            return batch
        loud |= (batch.get(term.fn.reads.get(column, column)) != 0) & batch.on(term.on)
    seq = batch.get("seq")
    keep = np.zeros(batch.size("seq"), bool)
    keep[seq[loud]] = True
    return batch.take(keep[seq])


def without(batch: Batch, rows: np.ndarray, reason: str, gone: dict[str, str]) -> Batch:
    """The batch without some rows; sequences that lose all theirs are noted under the reason."""
    if not rows.any():
        return batch
    left = batch.take(~rows)
    gone.update(dict.fromkeys(set(batch.names) - set(left.names), reason))
    return left
