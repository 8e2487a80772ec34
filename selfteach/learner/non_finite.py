"""The non-finite report: which sequences gave a loss or gradient that is not finite.

It runs only after such an update, so it may be slow: one sequence at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import NotFinite
from ..core.method import Update
from .backward import columns_by_parts, cotangents, second_pass
from .optimiser import named_parameters
from .param_groups import ParamGroups, local
from .rounds import micro_batches
from .terms import MetricAccumulator, live_columns

MAX_SHOWN = 5


def non_finite_report(groups: ParamGroups, since: Sequence[tuple[Batch, Update]]) -> NotFinite:
    """The error that names the sequences, from the batches and updates of a gradient; leaves no gradient behind.

    The first of these that is not finite is reported: weights, columns, derivatives of the loss by the columns,
    gradients of single sequences.
    """
    for _, update in since:
        for name, p in named_parameters(groups, update.params).items():
            if not _all_finite(groups, [p]):
                return NotFinite(
                    f"the loss or gradient is not finite: the weights are not ({name}); load an older checkpoint"
                )
    lines: list[str] = []
    for batch, update in since:
        with groups.fast_paths(), groups.trainable(update.params):
            lines += _batch_report(groups, batch, update)
    if not lines:
        lines = ["no sequence alone, only their sum"]
    more = f" and {len(lines) - MAX_SHOWN} more" if len(lines) > MAX_SHOWN else ""
    return NotFinite(
        f"the loss or gradient is not finite: {'; '.join(lines[:MAX_SHOWN])}{more}; "
        "weights and optimiser are as they were"
    )


def _batch_report(groups: ParamGroups, batch: Batch, update: Update) -> list[str]:
    """One line per sequence of a batch whose columns, derivatives or gradient are not finite."""
    single = [np.array([s]) for s in range(batch.size("seq"))]
    if groups.ranks is not None:
        single = micro_batches(groups, batch, 1) or []
    want = live_columns(update, groups, batch)
    columns = columns_by_parts(groups, batch, want, single)
    bad = {c: ~torch.isfinite(v) & _like(torch.from_numpy(want[c]), v) for c, v in columns.items()}
    if lines := _describe(batch, bad, columns, ""):
        return lines
    grads = cotangents(groups, batch, update, want, single, MetricAccumulator())
    if lines := _describe(
        batch, {c: ~torch.isfinite(g) for c, g in grads.items()}, grads, "the derivative of the loss by "
    ):
        return lines
    params = list(named_parameters(groups, update.params).values())
    for piece in second_pass(groups, batch, grads, single):
        together = [int(s) for p in ([piece] if groups.division is None else groups.division.gather(piece)) for s in p]
        if not _all_finite(groups, [p.grad for p in params if p.grad is not None]):
            lines.append(f"sample {' or '.join(batch.names[s] for s in together)}: its gradient")
        for p in params:
            p.grad = None
    return lines


def _all_finite(groups: ParamGroups, tensors: Sequence[Tensor]) -> bool:
    """Whether tensors are finite; of sharded ones on every rank."""
    finite = all(bool(torch.isfinite(local(t)).all()) for t in tensors)
    return finite if groups.ranks is None else all(groups.ranks.gather(finite))


def _like(rows: Tensor, values: Tensor) -> Tensor:
    return rows.to(values.device).reshape(-1, *[1] * (values.ndim - 1))


def _describe(batch: Batch, bad: dict[str, Tensor], values: dict[str, Tensor], what: str) -> list[str]:
    """One line per sequence: its name, and the first of its tokens that is not finite."""
    out: dict[int, str] = {}
    for column, mask in bad.items():
        for row in np.flatnonzero(mask.reshape(len(mask), -1).any(-1).cpu().numpy()):
            seq = int(batch.get("seq")[row])
            at = int(batch.place[row] - batch.start[seq])
            worst = float(values[column][row].reshape(-1)[~torch.isfinite(values[column][row].reshape(-1))][0])
            out.setdefault(
                seq,
                f"sample {batch.names[seq]}: {what}{column} at token {at} (id {batch.ids[batch.place[row]]}) is "
                f"{worst}",
            )
    return [out[s] for s in sorted(out)]
