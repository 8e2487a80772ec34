"""Sums and means over the rows of each sequence, differentiable. PyTorch. Plain helpers, not blocks."""

from __future__ import annotations

import torch


def count(seq: torch.Tensor) -> int:
    """How many sequences an index speaks of: its largest number plus one, 0 for no rows."""
    return int(seq.max()) + 1 if len(seq) else 0


def seq_sum(x: torch.Tensor, seq: torch.Tensor, n: int | None = None) -> torch.Tensor:
    """[S]: sum of x [N] over the rows of each sequence, seq i64[N]; 0 for a sequence without rows.

    >>> seq_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 0]))
    tensor([5., 2.])
    """
    out = torch.zeros(count(seq) if n is None else n, dtype=x.dtype, device=x.device)
    return out.index_add(0, seq, x)


def seq_mean(x: torch.Tensor, seq: torch.Tensor, n: int | None = None) -> torch.Tensor:
    """[S]: mean of x [N] over the rows of each sequence; NaN for a sequence without rows."""
    total = seq_sum(x, seq, n)
    return total / torch.bincount(seq, minlength=len(total)).to(x.dtype)


def seq_last(x: torch.Tensor, seq: torch.Tensor, n: int | None = None) -> torch.Tensor:
    """[S]: x [N] at the last row of each sequence, rows in the order they stand. Every sequence must have a row.

    >>> seq_last(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 0]))
    tensor([4., 2.])
    """
    rows = torch.arange(len(seq), device=seq.device)
    last = torch.zeros(count(seq) if n is None else n, dtype=torch.int64, device=seq.device).scatter_reduce(0, seq, rows, "amax")
    return x[last]
