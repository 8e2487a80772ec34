"""What learners and engines ask of a model, whoever computes it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """ids -> hidden states -> logits. `transformer.Transformer` is ours; `foreign.Foreign` runs through transformers.

    c           its shape: vocab, width, max_length at least
    lm_head     its output embedding, whose weight is [vocab, width]
    pluggable   attention is handed in, so that texts may lie flat, branch, or stand in slots; else each row is a whole text
    plain_head  logits are hidden @ lm_head.weight.T and nothing more, but for the soft-cap c.logit_cap
    recompute   where a gradient is wanted, layers are computed again on the way back, not kept (Transformer alone heeds it)
    """

    c: Any
    lm_head: nn.Linear
    pluggable: ClassVar[bool]
    plain_head: bool
    recompute: bool = False

    @abstractmethod
    def forward(self, ids: Tensor, attend: Callable[..., Tensor], positions: Tensor | None = None) -> Tensor:
        """ids i64[B, T] -> hidden [B, T, width]; with `transformer.causal` rows are whole texts from position 0, padded at the right."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., width] -> logits [..., vocab]."""

    def names(self) -> dict[str, Tensor]:
        """Parameter name -> tensor, a tied head once: what is delivered and fingerprinted."""
        return dict(self.named_parameters())

    def extend(self, ids: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        """The next tokens of rows, i64[B, T], after what `past` holds -> (their hidden [B, T, width], what to hand in next).

        Here by computing everything again, which any causal model allows.
        """
        from .transformer import causal

        whole = ids if past is None else torch.cat([past, ids], 1)
        return self(whole, causal)[:, -ids.shape[1] :], whole

    def pick(self, past: Any, rows: Tensor) -> Any:
        """What `past` holds of some rows, i64[R]; a row may be taken several times, or not at all."""
        return past[rows]
