"""Columns that look at a whole group together: its hidden states are gathered by micro-batches, its log-probabilities made by chunks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadValue
from ..core.registry import quantities
from ..model.quantities import Name, Rows, logprobs, parse
from .backward import columns_by_parts
from .columns import chunk_rows
from .groups import Groups
from .microbatch import plan


def of_groups(column: str, groups: Groups, batch: Batch) -> bool:
    """True for a column of scope group."""
    name = parse(column, groups.seats, batch.prefixes)
    return name is not None and quantities.get(name.quantity).scope == "group"


def group_column(groups: Groups, batch: Batch, column: str, tokens: int) -> Tensor:
    """A column of scope group on all rows, without a gradient, a group (and a member in it) at a time: [N]; NaN where an example has no such view.

    Held at once: the hidden states of one group, and log-probabilities of a chunk of rows.
    Raises BadValue for rows whose sampling cannot be replayed.
    """
    name = parse(column, groups.seats, batch.prefixes)
    assert name is not None
    seq = batch.get("seq")
    group, member = batch.get("group"), np.array(batch.member, object)[seq]
    able = np.ones(len(seq), bool) if name.view is None else np.array([p is not None for p in batch.prefixes[name.view]], bool)[seq]
    out = torch.full((len(seq),), torch.nan, dtype=groups.start.lm_head.weight.dtype, device=groups.device)
    for g in range(batch.size("group")):
        for who in [name.member] if name.member is not None else sorted(set(batch.member)):
            mine = able & (group == g) & (member == who if name.member is None else True)
            if mine.any():
                values = _values(groups, batch.take(mine), Name(who, name.quantity, name.view), tokens)
                out[torch.from_numpy(np.flatnonzero(mine)).to(out.device)] = values.to(out.dtype)
    return out


def _values(groups: Groups, batch: Batch, name: Name, tokens: int) -> Tensor:
    """A quantity on the rows of one group."""
    heat = batch.get("temperature")
    if np.isnan(heat).any():
        first = batch.names[batch.get("seq")[int(np.isnan(heat).argmax())]]
        raise BadValue(
            f"sample {first}: its tokens were drawn from a cut or greedy distribution, so {name.quantity} cannot be computed; train with top_p=1"
        )
    q = quantities.get(name.quantity)
    asked = "_".join(w for w in (name.member, "last_hidden", name.view) if w)
    every = {asked: np.ones(len(heat), bool)}
    hidden = columns_by_parts(groups, batch, every, plan(batch, tokens, sharing=groups.sharing) or [])[asked]
    trunk = groups.trunk(groups.seats[name.member or "policy"].trunk)
    ids = torch.from_numpy(batch.ids[batch.place].astype(np.int64)).to(hidden.device)
    warm = None if (heat == 1).all() else torch.from_numpy(heat).to(hidden)

    def wide(at: slice) -> Tensor:
        return logprobs(trunk.logits(hidden[at]), 1.0 if warm is None else warm[at])

    rows = Rows(hidden, ids, wide, chunk_rows(trunk.lm_head.weight.shape[0]))
    read = {c: torch.from_numpy(np.ascontiguousarray(batch.get(c, u))).to(hidden.device) for c, u in q.columns.items()}
    with torch.no_grad():
        return q.fn(rows=rows, **read)
