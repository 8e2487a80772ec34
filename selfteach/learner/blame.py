"""Who it was: the sequences behind a loss or gradient that is not finite. Runs only after one, and may take its time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import NotFinite
from ..core.method import Update
from .backward import columns_by_parts, cotangents, second_pass
from .groups import Groups
from .optimiser import named
from .products import fast
from .terms import Told, live_columns

SHOWN = 5


def blame(groups: Groups, since: Sequence[tuple[Batch, Update]]) -> NotFinite:
    """The error that names the sequences, from what went into the gradient. Leaves no gradient behind.

    Asked in this order, the first answer is given: weights, columns, derivatives of the loss by the columns, gradients one by one.
    """
    for _, update in since:
        for name, p in named(groups, update.params).items():
            if not torch.isfinite(p).all():
                return NotFinite(f"the loss or gradient is not finite: the weights themselves are not ({name}); load an older checkpoint")
    said: list[str] = []
    for batch, update in since:
        with fast(), groups.moving(update.params):
            said += _of_batch(groups, batch, update)
    if not said:
        said = ["no sequence alone, only their sum"]
    more = f" and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    return NotFinite(f"the loss or gradient is not finite: {'; '.join(said[:SHOWN])}{more}; weights and optimiser are as they were")


def _of_batch(groups: Groups, batch: Batch, update: Update) -> list[str]:
    alone = [np.array([s]) for s in range(batch.size("seq"))]
    want = live_columns(update, groups, batch)
    columns = columns_by_parts(groups, batch, want, alone)
    bad = {c: ~torch.isfinite(v) & _like(torch.from_numpy(want[c]), v) for c, v in columns.items()}
    if said := _said(batch, bad, columns, ""):
        return said
    back = cotangents(groups, batch, update, want, alone, Told())
    if said := _said(batch, {c: ~torch.isfinite(g) for c, g in back.items()}, back, "the derivative of the loss by "):
        return said
    params = list(named(groups, update.params).values())
    for piece in second_pass(groups, batch, back, alone):
        if not all(torch.isfinite(p.grad).all() for p in params if p.grad is not None):
            said.append(f"sample {batch.names[int(piece[0])]}: its gradient")
        for p in params:
            p.grad = None
    return said


def _like(rows: Tensor, values: Tensor) -> Tensor:
    return rows.to(values.device).reshape(-1, *[1] * (values.ndim - 1))


def _said(batch: Batch, bad: dict[str, Tensor], values: dict[str, Tensor], what: str) -> list[str]:
    """One line per sequence: its name, and the first of its tokens that is not finite."""
    out: dict[int, str] = {}
    for column, mask in bad.items():
        for row in np.flatnonzero(mask.reshape(len(mask), -1).any(-1).cpu().numpy()):
            seq = int(batch.get("seq")[row])
            at = int(batch.place[row] - batch.start[seq])
            worst = float(values[column][row].reshape(-1)[~torch.isfinite(values[column][row].reshape(-1))][0])
            out.setdefault(seq, f"sample {batch.names[seq]}: {what}{column} at token {at} (id {batch.ids[batch.place[row]]}) is {worst}")
    return [out[s] for s in sorted(out)]
