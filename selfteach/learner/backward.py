"""The gradient of an update on a batch, in one pass or in two; either is exact for any split into micro-batches.

One pass, where no term needs rows of several micro-batches together: per micro-batch, forward, terms, backward.
Two passes: (1) the columns of all rows without a graph, the terms on all rows, and d loss / d column (the cotangents)
by autograd over the columns alone; (2) per micro-batch, the columns again with their graph, and the backward of
sum of cotangent * column. By the chain rule that is the same gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadValue
from ..core.method import Update
from .columns import compute_columns, is_trainable, live_column_name, passes_of
from .param_groups import ParamGroups
from .rounds import alone, anchored, collect_columns, failed, in_round, micro_batches
from .terms import MetricAccumulator, check_update, indivisible_unit, live_columns, term_labels, weighted_loss


def accumulate_gradients(groups: ParamGroups, batch: Batch, update: Update, tokens: int) -> dict[str, float]:
    """Add the gradient of an update to the parameters of `update.params`, and return metrics.

    tokens: of a micro-batch. Raises BadValue before anything is computed.
    """
    check_update(update, groups, batch)
    want = live_columns(update, groups, batch)
    accumulator = MetricAccumulator(
        sums=dict.fromkeys(term_labels(update), 0.0), counts=dict.fromkeys(term_labels(update), 1)
    )
    rows = (
        np.logical_or.reduce([batch.on(t.on) for t in update.terms])
        if update.terms
        else np.zeros(len(batch.place), bool)
    )
    if rows.any():
        _check_reached(groups, batch, update, want)
        with groups.trainable(update.params):
            pieces = micro_batches(groups, batch, tokens, indivisible_unit(update))
            if pieces is not None:
                _one_pass(groups, batch, update, want, pieces, accumulator)
            else:
                pieces = micro_batches(groups, batch, tokens) or []
                column_grads = cotangents(groups, batch, update, want, pieces, accumulator)
                for _ in second_pass(groups, batch, column_grads, pieces):
                    pass
    metrics = accumulator.metrics()
    return {"loss": sum(metrics[n] for n in dict.fromkeys(term_labels(update))), **metrics, "rows": float(rows.sum())}


def _check_reached(groups: ParamGroups, batch: Batch, update: Update, want: Mapping[str, np.ndarray]) -> None:
    """Raise BadValue unless some column that is read depends on the groups that the update trains."""
    names = [n for c in want if (n := live_column_name(c, groups, batch)) is not None]
    if not any(is_trainable(n, groups, batch, update.params) for n in names):
        read = ", ".join(want) or "none"
        raise BadValue(
            f"update of {', '.join(update.params)}: none of its terms reads a column that depends on these weights; "
            f"they read: {read}"
        )


def _one_pass(
    groups: ParamGroups,
    batch: Batch,
    update: Update,
    want: Mapping[str, np.ndarray],
    pieces: Sequence[np.ndarray],
    accumulator: MetricAccumulator,
) -> None:
    needed = np.logical_or.reduce([*want.values(), np.zeros(len(batch.place), bool)])
    seq = batch.get("seq")
    passes, own = passes_of(groups, batch, want), MetricAccumulator()
    for number, piece in enumerate(pieces):
        mine = np.isin(seq, piece)
        if groups.ranks is None and not (mine & needed).any():
            continue
        part = batch.take(mine)
        with in_round(groups, passes, number, len(pieces)):
            columns = compute_columns(groups, part, {c: r[mine] for c, r in want.items()})
            loss = None
            with alone(groups):
                loss = None if failed(groups) else weighted_loss(update, groups, part, columns, own)
            loss = anchored(groups, loss)
            if loss is not None and loss.requires_grad:
                loss.backward()
    for counted in [own] if groups.division is None else groups.division.gather(own.on_cpu()):
        accumulator.update(counted)


def columns_by_parts(
    groups: ParamGroups,
    batch: Batch,
    want: Mapping[str, np.ndarray],
    pieces: Sequence[np.ndarray],
    partial: bool = False,
) -> dict[str, Tensor]:
    """Columns of all rows of a batch without a graph, by micro-batches: [N] or [N, D]; NaN on rows not in `want`."""
    seq = batch.get("seq")
    collected: dict[str, list[tuple[np.ndarray, Tensor]]] = {c: [] for c in want}
    passes = passes_of(groups, batch, want, partial)
    with torch.no_grad():
        for number, piece in enumerate(pieces):
            mine = np.isin(seq, piece)
            with in_round(groups, passes, number, len(pieces)):
                for column, values in compute_columns(
                    groups, batch.take(mine), {c: r[mine] for c, r in want.items()}, partial
                ).items():
                    collected[column].append((np.flatnonzero(mine), values))
        return {c: _join(parts) for c, parts in collect_columns(groups, collected).items()}


def _join(parts: list[tuple[np.ndarray, Tensor]]) -> Tensor:
    if not parts:
        return torch.zeros(0)
    order = np.argsort(np.concatenate([r for r, _ in parts]), kind="stable")
    # A micro-batch without rows of a vector column gives scalars, all NaN: widened to the vectors of the others.
    widest = max((v for _, v in parts), key=lambda v: v.ndim)
    same = [
        v if v.ndim == widest.ndim else v.view(-1, *[1] * (widest.ndim - 1)).expand(-1, *widest.shape[1:])
        for _, v in parts
    ]
    return torch.cat(same)[torch.from_numpy(order).to(widest.device)]


def cotangents(
    groups: ParamGroups,
    batch: Batch,
    update: Update,
    want: Mapping[str, np.ndarray],
    pieces: Sequence[np.ndarray],
    accumulator: MetricAccumulator,
) -> dict[str, Tensor]:
    """Derivatives d loss / d column on every row, for columns with a gradient; 0 on rows that no term reads."""
    columns = columns_by_parts(groups, batch, want, pieces)
    leaves = [
        c
        for c in want
        if (n := live_column_name(c, groups, batch)) is not None and is_trainable(n, groups, batch, update.params)
    ]
    with torch.enable_grad():
        for c in leaves:
            columns[c] = columns[c].detach().requires_grad_(True)
        loss = weighted_loss(update, groups, batch, columns, accumulator)
        grads = torch.autograd.grad(loss, [columns[c] for c in leaves], allow_unused=True) if loss.requires_grad else []
    out = {c: g for c, g in zip(leaves, grads, strict=False) if g is not None}  # pyright: ignore[reportUnnecessaryComparison] (allow_unused)
    if groups.ranks is None:
        return out
    # Rank 0's on every rank: of other machines the last bit might differ, and with it which rows are 0.
    sent = groups.ranks.broadcast({c: g.cpu() for c, g in out.items()})
    return {c: g.to(groups.device) for c, g in sent.items()}


def second_pass(
    groups: ParamGroups, batch: Batch, column_grads: Mapping[str, Tensor], pieces: Sequence[np.ndarray]
) -> Iterator[np.ndarray]:
    """Backward of sum of cotangent * column by micro-batches; yields each one after its gradient is added.

    Rows whose cotangents are all 0 (clipped, masked) are left out, which is exact.
    """
    seq = batch.get("seq")
    every = {c: (g != 0).reshape(len(g), -1).any(-1).cpu().numpy() for c, g in column_grads.items()}
    passes = passes_of(groups, batch, {c: r for c, r in every.items() if r.any()})
    for number, piece in enumerate(pieces):
        mine = np.isin(seq, piece)
        parts = {c: g[torch.from_numpy(mine).to(g.device)] for c, g in column_grads.items()}
        rows = {c: r[mine] for c, r in every.items()}
        with in_round(groups, passes, number, len(pieces)):
            if passes or any(r.any() for r in rows.values()):
                columns = compute_columns(groups, batch.take(mine), {c: r for c, r in rows.items() if r.any()})
                loss = None
                with alone(groups):
                    if columns and not failed(groups):
                        pick = {c: torch.from_numpy(np.flatnonzero(rows[c])).to(v.device) for c, v in columns.items()}
                        loss = torch.stack([(parts[c][pick[c]] * v[pick[c]]).sum() for c, v in columns.items()]).sum()
                loss = anchored(groups, loss)
                if loss is not None and loss.requires_grad:
                    loss.backward()
        yield piece
