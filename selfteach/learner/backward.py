"""The gradient of an update on a batch: in one pass where its rows allow, else in two, which is exact for any split.

One pass: per micro-batch, the columns with their graph, the terms on them, and the way back at once.
Two passes: the columns of all rows without a graph; the terms on all rows, by autograd over the columns alone; then the columns again,
per micro-batch, and the way back of the sum of cotangent * column. By the chain rule that is the same gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadValue
from ..core.method import Update
from .columns import asked, compute_columns, moves
from .groups import Groups
from .microbatch import plan
from .terms import Told, check, labels, live_columns, tie, total


def accumulate(groups: Groups, batch: Batch, update: Update, tokens: int) -> dict[str, float]:
    """Add the gradient to the parameters of `update.params`; returns metrics. Raises BadValue before anything is computed."""
    check(update, groups, batch)
    want = live_columns(update, groups, batch)
    told = Told(total=dict.fromkeys(labels(update), 0.0), count=dict.fromkeys(labels(update), 1))
    rows = np.logical_or.reduce([batch.on(t.on) for t in update.terms]) if update.terms else np.zeros(len(batch.place), bool)
    if rows.any():
        _reached(groups, batch, update, want)
        with groups.moving(update.params):
            pieces = plan(batch, tokens, tie(update), groups.sharing)
            if pieces is not None:
                _one_pass(groups, batch, update, want, pieces, told)
            else:
                _two_passes(groups, batch, update, want, plan(batch, tokens, sharing=groups.sharing) or [], told)
    metrics = told.metrics()
    return {"loss": sum(metrics[n] for n in dict.fromkeys(labels(update))), **metrics, "rows": float(rows.sum())}


def _reached(groups: Groups, batch: Batch, update: Update, want: Mapping[str, np.ndarray]) -> None:
    names = [n for c in want if (n := asked(c, groups, batch)) is not None]
    if not any(moves(n, groups, batch, update.params) for n in names):
        read = ", ".join(want) or "none"
        raise BadValue(f"update of {', '.join(update.params)}: none of its terms reads a column that these weights move; they read: {read}")


def _one_pass(groups: Groups, batch: Batch, update: Update, want: Mapping[str, np.ndarray], pieces: Sequence[np.ndarray], told: Told) -> None:
    needed = np.logical_or.reduce([*want.values(), np.zeros(len(batch.place), bool)])
    seq = batch.get("seq")
    for piece in pieces:
        mine = np.isin(seq, piece)
        if not (mine & needed).any():
            continue
        part = batch.take(mine)
        columns = compute_columns(groups, part, {c: r[mine] for c, r in want.items()})
        loss = total(update, groups, part, columns, told)
        if loss.requires_grad:
            loss.backward()


def columns_by_parts(
    groups: Groups, batch: Batch, want: Mapping[str, np.ndarray], pieces: Sequence[np.ndarray], partial: bool = False
) -> dict[str, Tensor]:
    """Columns of all rows of a batch without a graph, by micro-batches; NaN where a column is not asked for."""
    seq = batch.get("seq")
    found: dict[str, list[tuple[np.ndarray, Tensor]]] = {c: [] for c in want}
    with torch.no_grad():
        for piece in pieces:
            mine = np.isin(seq, piece)
            for column, values in compute_columns(groups, batch.take(mine), {c: r[mine] for c, r in want.items()}, partial).items():
                found[column].append((np.flatnonzero(mine), values))
        return {c: _joined(parts) for c, parts in found.items()}


def _joined(parts: list[tuple[np.ndarray, Tensor]]) -> Tensor:
    if not parts:
        return torch.zeros(0)
    order = np.argsort(np.concatenate([r for r, _ in parts]), kind="stable")
    wide = max((v for _, v in parts), key=lambda v: v.ndim)  # a piece without rows of a vector column is a column of NaN numbers
    same = [v if v.ndim == wide.ndim else v[:, None].expand(-1, wide.shape[1]) for _, v in parts]
    return torch.cat(same)[torch.from_numpy(order).to(wide.device)]


def cotangents(
    groups: Groups, batch: Batch, update: Update, want: Mapping[str, np.ndarray], pieces: Sequence[np.ndarray], told: Told
) -> dict[str, Tensor]:
    """d loss / d column on every row, for the columns that move; 0 on rows that no term reads."""
    columns = columns_by_parts(groups, batch, want, pieces)
    leaves = [c for c in want if (n := asked(c, groups, batch)) is not None and moves(n, groups, batch, update.params)]
    with torch.enable_grad():
        for c in leaves:
            columns[c] = columns[c].detach().requires_grad_(True)
        loss = total(update, groups, batch, columns, told)
        grads = torch.autograd.grad(loss, [columns[c] for c in leaves], allow_unused=True) if loss.requires_grad else []
    return {c: g for c, g in zip(leaves, grads, strict=False) if g is not None}


def _two_passes(groups: Groups, batch: Batch, update: Update, want: Mapping[str, np.ndarray], pieces: Sequence[np.ndarray], told: Told) -> None:
    back = cotangents(groups, batch, update, want, pieces, told)
    for _ in second_pass(groups, batch, back, pieces):
        pass


def second_pass(groups: Groups, batch: Batch, back: Mapping[str, Tensor], pieces: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """The way back of sum of cotangent * column, micro-batch by micro-batch; yields each after its gradient is in.

    Rows whose cotangents are all 0 (clipped, masked) are left out, which is exact.
    """
    seq = batch.get("seq")
    for piece in pieces:
        mine = np.isin(seq, piece)
        cuts = {c: g[torch.from_numpy(mine).to(g.device)] for c, g in back.items()}
        rows = {c: (g != 0).reshape(len(g), -1).any(-1).cpu().numpy() for c, g in cuts.items()}
        if any(r.any() for r in rows.values()):
            columns = compute_columns(groups, batch.take(mine), {c: r for c, r in rows.items() if r.any()})
            pick = {c: torch.from_numpy(np.flatnonzero(rows[c])).to(v.device) for c, v in columns.items()}
            loss = torch.stack([(cuts[c][pick[c]] * v[pick[c]]).sum() for c, v in columns.items()]).sum()
            if loss.requires_grad:
                loss.backward()
        yield piece
