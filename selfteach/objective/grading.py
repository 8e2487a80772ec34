"""Terms that teach a reward model, whose scalar head speaks after the last token of a text."""

from __future__ import annotations

from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from ..core import Pair, Seq, Token, block
from .segments import seq_last


@block
def bradley_terry(*, scalar_after: Token, seq: Token, win: Pair, lose: Pair) -> Pair:
    """-log sigmoid(R(win) - R(lose)), R the scalar after a text's last token (Bradley & Terry 1952; Ouyang et al. 2022, 2203.02155, eq. 1).

    Args: scalar_after f[N]; seq i64[N]; win, lose i64[P]. Returns: l f[P], log 2 where both are worth the same. Scope: pair.

    >>> import torch
    >>> bradley_terry(scalar_after=torch.tensor([9.0, 1.0, 1.0]), seq=torch.tensor([0, 0, 1]), win=torch.tensor([0]), lose=torch.tensor([1]))
    tensor([0.6931])
    """
    worth = seq_last(scalar_after, seq)
    return -logsigmoid(worth[win] - worth[lose])


@block
def right_or_wrong(*, scalar_after: Token, seq: Token, label: Seq) -> Seq:
    """Binary cross-entropy of sigmoid(R) with a label, R the scalar after a text's last token. Args: label f[S], 0 to 1. Returns: l f[S].

    >>> import torch
    >>> right_or_wrong(scalar_after=torch.tensor([5.0, 0.0]), seq=torch.tensor([0, 0]), label=torch.tensor([1.0]))
    tensor([0.6931])
    """
    return binary_cross_entropy_with_logits(seq_last(scalar_after, seq, len(label)), label, reduction="none")
