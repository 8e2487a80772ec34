"""The interface of a model to learners and engines."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .attention import AttentionFn, causal_attention


class Model(nn.Module):
    """Token ids -> hidden states -> logits: our `transformer.Transformer`, or `hf_model.HFModel` by transformers.

    config       the model's shape: vocab, width, max_length at least
    lm_head      output embedding, with a weight [vocab, width]
    supports_custom_attention
                 True: `attend` may be any AttentionFn, so that texts may be flattened, branch, or be in a KV cache;
                 False: each row is a whole text
    plain_head   True: logits are hidden @ lm_head.weight.T, but for the soft-cap config.logit_cap
    recompute    gradient checkpointing: layers are computed again in the backward (Transformer only)
    """

    config: Any
    lm_head: nn.Linear
    supports_custom_attention: ClassVar[bool]
    plain_head: bool
    recompute: bool = False

    @abstractmethod
    def forward(self, ids: Tensor, attend: AttentionFn, positions: Tensor | None = None) -> Tensor:
        """Hidden states [B, T, width] of ids i64[B, T].

        Under `causal_attention` rows are whole texts, padded on the right.
        """

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocab] of hidden states [..., width]."""

    def named_tensors(self) -> dict[str, Tensor]:
        """Parameters by name, a tied head once: what engines receive and fingerprints are made of."""
        return dict(self.named_parameters())

    def extend(self, ids: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        """(hidden [B, T, width], state) of the next tokens i64[B, T] of rows after the state `past`.

        Here without a cache, by computing the whole rows again.
        """
        whole = ids if past is None else torch.cat([past, ids], 1)
        return self(whole, causal_attention)[:, -ids.shape[1] :], whole

    def select_rows(self, past: Any, rows: Tensor) -> Any:
        """The state `past` of the rows i64[R]; a row may occur several times, or not at all."""
        return past[rows]
