"""Loss weights: a term's w, computed once for the whole optimiser batch, before it is split into micro-batches."""

from __future__ import annotations

import numpy as np

from ..core.batch import Batch
from ..core.blocks import Array, Block, Unit
from ..core.errors import BadValue
from ..core.method import Term


def loss_weights(batch: Batch, term: Term) -> Array:
    """w for a term: f64, one per row of its unit in the whole batch, 0 for rows of other loss streams.

    Only rows of the term's loss streams count, in numerators and denominators: a sequence is as long as its tokens
    there, a step, sequence or group counts if it has any, a pair if both sides do. Without `loss_weights`: one over the
    number of rows that count. With it: a token's weight is its sequence's v; a step, sequence or group weighs the sum
    over its tokens (a sequence v * length). Raises BadValue for a weighting of tokens on a term over pairs.
    """
    on = batch.on(term.on)
    unit = term.fn.unit
    if term.loss_weights is None:
        counted_rows = np.isin(np.arange(batch.size(unit)), _above(batch, on, unit))
        if unit == "pair":
            counted_seqs = np.isin(np.arange(batch.size("seq")), _above(batch, on, "seq"))
            counted_rows = counted_seqs[batch.index["win"]] & counted_seqs[batch.index["lose"]]
        return counted_rows / max(1, np.count_nonzero(counted_rows))
    if unit == "pair":
        raise BadValue(
            f"term {term.fn}: {term.loss_weights} weighs tokens, and a pair has none of its own; leave loss_weights "
            "out for the mean over pairs"
        )
    per_token = np.where(on, _per_sequence(batch, term.loss_weights, on)[batch.get("seq")], 0.0)
    if unit == "token":
        return per_token
    return np.bincount(_above(batch, np.ones_like(on), unit), weights=per_token, minlength=batch.size(unit))


def _above(batch: Batch, on: np.ndarray, unit: Unit) -> np.ndarray:
    """The rows of a unit that some tokens belong to, one for each of these tokens."""
    if unit == "token":
        return np.flatnonzero(on)
    return np.zeros(0, np.int64) if unit == "pair" else batch.get(unit)[on]


def _per_sequence(batch: Batch, loss_weights: Block, on: np.ndarray) -> np.ndarray:
    length = np.bincount(batch.get("seq")[on], minlength=batch.size("seq"))
    counted_rows = np.flatnonzero(length)
    out = np.zeros(len(length))
    if len(counted_rows):
        columns = {
            n: length[counted_rows] if n == "length" else batch.get(loss_weights.reads.get(n, n), "seq")[counted_rows]
            for n in loss_weights.needs
        }
        out[counted_rows] = loss_weights(**columns)
    return out
