"""Weighting as a column: how much a row counts in the sum that is minimised. NumPy, over the whole optimiser batch.

A weighting gives, for each sequence, the weight of one of its tokens; a row above the tokens weighs what its tokens weigh together. Since
the weights exist before any micro-batch does, sum(w * l) is the same however the batch is cut.
"""

from __future__ import annotations

import numpy as np

from selfteach.core import BadValue, Batch, Part, Seq, Term, Unit, block
from selfteach.core.part import Array


@block
def token_mean(*, length: Seq) -> Seq:
    """Every token the same: 1 / N (DAPO, 2503.14476, eq. 8). Args: length i64[S], learned tokens. Returns: f64[S], per token.

    >>> token_mean(length=np.array([1, 3]))
    array([0.25, 0.25])
    """
    return np.full(len(length), 1.0 / length.sum())


@block
def sequence_mean(*, length: Seq) -> Seq:
    """Every sequence the same: 1 / (S len) (GRPO, 2402.03300, eq. 3). Args: length i64[S]. Returns: f64[S], per token.

    >>> sequence_mean(length=np.array([1, 4]))
    array([0.5  , 0.125])
    """
    return 1.0 / (len(length) * length)


@block
def sequence_sum(*, length: Seq) -> Seq:
    """A sequence counts by its tokens, the mean is over sequences: 1 / S, REINFORCE's. Args: length i64[S]. Returns: f64[S], per token."""
    return np.full(len(length), 1.0 / len(length))


@block
def constant_length(*, length: Seq, limit: int = 512) -> Seq:
    """`sequence_sum` over a constant: 1 / (S limit) (Dr. GRPO, 2503.20783). Args: length i64[S]. Returns: f64[S], per token."""
    return np.full(len(length), 1.0 / (len(length) * limit))


@block
def prompt_mean(*, length: Seq, group: Seq) -> Seq:
    """Every group the same, and within it every token: 1 / (G tokens of the group). Args: length, group i64[S]. Returns: f64[S], per token.

    >>> prompt_mean(length=np.array([1, 3, 2]), group=np.array([0, 0, 1]))
    array([0.125, 0.125, 0.25 ])
    """
    tokens = np.bincount(group, weights=length)
    return 1.0 / (np.count_nonzero(tokens) * tokens[group])


def weights(batch: Batch, term: Term) -> Array:
    """w for a term: f64, one per row of its unit in the whole batch, 0 for rows that are not on its streams.

    Only rows on the term's streams count, in numerators and denominators: a sequence is as long as its tokens there, a step, sequence or
    group counts if it has any, a pair if both sides do. Without `weigh`: one over the number of rows that count. With it: a token's
    weight is its sequence's v; a step, sequence or group weighs the sum over its tokens (a sequence v * length).
    Raises BadValue for a weighting of tokens on a term over pairs.
    """
    on = batch.on(term.on)
    unit = term.fn.unit
    if term.weigh is None:
        live = np.isin(np.arange(batch.size(unit)), _above(batch, on, unit))
        if unit == "pair":
            in_it = np.isin(np.arange(batch.size("seq")), _above(batch, on, "seq"))
            live = in_it[batch.index["win"]] & in_it[batch.index["lose"]]
        return live / max(1, np.count_nonzero(live))
    if unit == "pair":
        raise BadValue(f"term {term.fn}: {term.weigh} weighs tokens, and a pair has none of its own; leave weigh out for the mean over pairs")
    per_token = np.where(on, _per_sequence(batch, term.weigh, on)[batch.get("seq")], 0.0)
    if unit == "token":
        return per_token
    return np.bincount(_above(batch, np.ones_like(on), unit), weights=per_token, minlength=batch.size(unit))


def _above(batch: Batch, on: np.ndarray, unit: Unit) -> np.ndarray:
    """The rows of a unit that some tokens belong to, one for each of these tokens."""
    if unit == "token":
        return np.flatnonzero(on)
    return np.zeros(0, np.int64) if unit == "pair" else batch.get(unit)[on]


def _per_sequence(batch: Batch, weigh: Part, on: np.ndarray) -> np.ndarray:
    length = np.bincount(batch.get("seq")[on], minlength=batch.size("seq"))
    live = np.flatnonzero(length)
    out = np.zeros(len(length))
    if len(live):
        columns = {n: length[live] if n == "length" else batch.get(weigh.reads.get(n, n), "seq")[live] for n in weigh.needs}
        out[live] = weigh(**columns)
    return out
