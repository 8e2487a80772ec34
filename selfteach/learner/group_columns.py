"""Group-scope quantities: hidden states of a group by micro-batches, its log-probabilities by chunks of rows."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.errors import BadValue
from ..core.quantity import ColumnName, GroupRows, parse
from ..core.registry import quantities
from ..model.quantities import logprobs
from .backward import columns_by_parts
from .columns import chunk_rows
from .param_groups import ParamGroups
from .rounds import micro_batches


def is_group_column(column: str, groups: ParamGroups, batch: Batch) -> bool:
    """Whether a column names a group-scope quantity."""
    name = parse(column, groups.models, batch.prefixes)
    return name is not None and quantities.get(name.quantity).scope == "group"


def group_column(groups: ParamGroups, batch: Batch, column: str, tokens: int) -> Tensor:
    """A group-scope quantity on all rows, without a gradient: [N]; NaN where an example has no such view.

    Computed for one group and one model at a time: in memory are the hidden states of these, and the log-probabilities
    of a chunk of rows. Raises BadValue for rows whose sampling cannot be replayed.
    """
    name = parse(column, groups.models, batch.prefixes)
    assert name is not None
    seq = batch.get("seq")
    group, model = batch.get("group"), np.array([name.model_role or m for m in batch.model_role], object)[seq]
    has_view = np.ones(len(batch.names), bool)
    if name.view is not None:
        has_view = np.array([p is not None for p in batch.prefixes[name.view]], bool)
    out = torch.full((len(seq),), torch.nan, dtype=groups.start.lm_head.weight.dtype, device=groups.device)
    for g, model_role in itertools.product(range(batch.size("group")), sorted(set(model))):
        inside = has_view[seq] & (group == g) & (model == model_role)
        if inside.any():
            values = _values(groups, batch.take(inside), ColumnName(model_role, name.quantity, name.view), tokens)
            out[torch.from_numpy(np.flatnonzero(inside)).to(out.device)] = values.to(out.dtype)
    return out


def _values(groups: ParamGroups, batch: Batch, name: ColumnName, tokens: int) -> Tensor:
    """A quantity on the rows of one group under one model: [N]."""
    assert name.model_role is not None
    q = quantities.get(name.quantity)
    state = "_".join(w for w in (name.model_role, "last_hidden", name.view) if w)
    every = {state: np.ones(len(batch.place), bool)}
    hidden = columns_by_parts(groups, batch, every, micro_batches(groups, batch, tokens) or [])[state]
    trunk = groups.trunk(groups.models[name.model_role].trunk)
    ids = torch.from_numpy(batch.ids[batch.place].astype(np.int64)).to(hidden.device)
    temperature = _temperature(batch, name.quantity)
    temperatures = None if (temperature == 1).all() else torch.from_numpy(temperature).to(hidden)

    def log_probabilities(at: slice) -> Tensor:
        return logprobs(trunk.logits(hidden[at]), 1.0 if temperatures is None else temperatures[at])

    rows = GroupRows(hidden, ids, log_probabilities, chunk_rows(trunk.lm_head.weight.shape[0]))
    columns = {
        c: torch.from_numpy(np.ascontiguousarray(batch.get(c, u))).to(hidden.device) for c, u in q.columns.items()
    }
    with torch.no_grad(), groups.gathered_head(trunk):
        return q.fn(rows=rows, **columns)


def _temperature(batch: Batch, name: str) -> np.ndarray:
    """f64[N]: the temperature of each row. Raises BadValue where the sampling cannot be replayed."""
    temperature = batch.get("temperature")
    if np.isnan(temperature).any():
        first = batch.names[batch.get("seq")[int(np.isnan(temperature).argmax())]]
        raise BadValue(
            f"sample {first}: its tokens were drawn from a truncated or greedy distribution, so {name} cannot be "
            "computed; train with top_p=1"
        )
    return temperature
