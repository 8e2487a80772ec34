"""Micro-batches on several ranks: which sequences each has, and rounds in which all take part in the same collectives.

In a round every rank has one micro-batch, or an empty one. All ranks do the same forward passes in the same order (a
pass of which a rank has no rows is over a single token), and their backwards meet in the same trunks. What a rank
computes alone (logits, terms) may fail there alone: its gradient is then 0, and all ranks agree on the error after the
round. Without ranks all of this is nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..core.batch import Batch
from ..core.blocks import Unit
from ..core.errors import SelfteachError
from .microbatch import plan_micro_batches, split_by_tokens
from .param_groups import ParamGroups

Pass = tuple[str, str | None]  # the group of a trunk, a view


@dataclass
class Round:
    """A round of micro-batches, as one rank sees it.

    passes   that every rank does
    anchors  zeros that depend on the hidden states of each pass, so that a backward goes through all of them
    error    of what this rank computed alone
    """

    passes: Sequence[Pass]
    anchors: list[Tensor] = field(default_factory=list[Tensor])
    error: BaseException | None = None


def micro_batches(groups: ParamGroups, batch: Batch, tokens: int, unit: Unit = "seq") -> list[np.ndarray] | None:
    """The micro-batches of this rank, as `plan_micro_batches` gives them; the same number on every rank.

    None on every rank where a unit does not fit one, or there are fewer units than ranks.
    """
    ranks = groups.division
    if ranks is None:
        return plan_micro_batches(batch, tokens, unit, groups.shares_prefixes)
    shares = split_by_tokens(batch, ranks.world, unit, groups.shares_prefixes)
    if shares is None:
        return None
    mine = np.isin(batch.get("seq"), shares[ranks.rank])
    own: list[np.ndarray] | None = []
    if mine.any():
        numbers = np.unique(batch.get("seq")[mine])
        own = plan_micro_batches(batch.take(mine), tokens, unit, groups.shares_prefixes)
        own = None if own is None else [numbers[piece] for piece in own]
    counts = ranks.gather(None if own is None else len(own))
    if own is None or None in counts:
        return None
    return own + [np.zeros(0, np.int64)] * (max(counts) - len(own))


@contextmanager
def in_round(groups: ParamGroups, passes: Sequence[Pass], number: int, of: int) -> Generator[None]:
    """A micro-batch inside the `with`; then all ranks agree that it went well, and give up what it left gathered.

    Raises on every rank the error of one.
    """
    ranks = groups.ranks
    if ranks is None:
        yield
        return
    from .sharding import reshard

    ranks.note(f"micro-batch {number + 1} of {of}")
    groups.round = Round(passes)
    try:
        yield
        for name, _ in passes:
            reshard(groups.trunk(name))
        ranks.agree(groups.round.error)
    finally:
        groups.round = None


@contextmanager
def alone(groups: ParamGroups) -> Generator[None]:
    """What a rank computes without the others inside the `with`: its error waits for the end of the round."""
    try:
        yield
    except (SelfteachError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if groups.round is None:
            raise
        groups.round.error = groups.round.error or error


def failed(groups: ParamGroups) -> bool:
    """Whether this rank failed in the present round."""
    return groups.round is not None and groups.round.error is not None


def anchored(groups: ParamGroups, loss: Tensor | None) -> Tensor | None:
    """A loss with 0 times the hidden states of every pass of the round; of a rank that failed, or has no rows, that
    alone. None where there is nothing.
    """
    if groups.round is None:
        return loss
    parts = [a for a in groups.round.anchors if a.requires_grad]
    if loss is not None and loss.requires_grad:
        parts.append(loss)
    return torch.stack([p.to(parts[-1].dtype) for p in parts]).sum() if parts else None


def collect_columns(
    groups: ParamGroups, own: Mapping[str, list[tuple[np.ndarray, Tensor]]]
) -> dict[str, list[tuple[np.ndarray, Tensor]]]:
    """Parts of columns (rows, values) of all ranks, on every rank."""
    if groups.division is None:
        return dict(own)
    sent = {c: [(rows, values.cpu().numpy()) for rows, values in parts if len(rows)] for c, parts in own.items()}
    out: dict[str, list[tuple[np.ndarray, Tensor]]] = {c: [] for c in own}
    for found in groups.division.gather(sent):
        for c, parts in found.items():
            out[c] += [(rows, torch.from_numpy(values).to(groups.device)) for rows, values in parts]
    return out
