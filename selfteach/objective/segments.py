"""Differentiable sums and means over the rows of each sequence. PyTorch. Helper functions, not blocks."""

from __future__ import annotations

from ..core.lazy import torch


def count(seq: torch.Tensor) -> int:
    """The number of sequences of an index: its largest number plus one, 0 for no rows."""
    return int(seq.max()) + 1 if len(seq) else 0


def seq_sum(x: torch.Tensor, seq: torch.Tensor, n: int | None = None) -> torch.Tensor:
    """[S]: sum of x [N] over the rows of each sequence, seq i64[N]; 0 for a sequence without rows.

    >>> seq_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 0]))
    tensor([5., 2.])
    """
    out = torch.zeros(count(seq) if n is None else n, dtype=x.dtype, device=x.device)
    return out.index_add(0, seq, x)


def log_ratio(logp: torch.Tensor, ref_logp: torch.Tensor, seq: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
    """f[S]: log(pi / ref) of an answer, the sum over its tokens, nats.

    Args: logp, ref_logp f[N]; seq i64[N]; reward f[S], by which it is known how many answers there are.
    """
    return seq_sum(logp - ref_logp, seq, len(reward))


def seq_mean(x: torch.Tensor, seq: torch.Tensor, n: int | None = None) -> torch.Tensor:
    """[S]: mean of x [N] over the rows of each sequence; NaN for a sequence without rows."""
    total = seq_sum(x, seq, n)
    return total / torch.bincount(seq, minlength=len(total)).to(x.dtype)


def next_row(x: torch.Tensor, seq: torch.Tensor) -> torch.Tensor:
    """[N]: the next row of the same sequence, 0 after its last; rows of a sequence in order.

    >>> next_row(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 1]))
    tensor([2., 0., 0.])
    """
    if not len(x):
        return x
    same = seq[1:] == seq[:-1]
    return torch.cat([torch.where(same, x[1:], 0.0), x.new_zeros(1)])


def seq_last(x: torch.Tensor, seq: torch.Tensor, n: int | None = None) -> torch.Tensor:
    """[S]: x [N] at the last row of each sequence, in the order of the rows. Every sequence must have a row.

    >>> seq_last(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 0]))
    tensor([4., 2.])
    """
    rows = torch.arange(len(seq), device=seq.device)
    last = torch.zeros(count(seq) if n is None else n, dtype=torch.int64, device=seq.device).scatter_reduce(
        0, seq, rows, "amax"
    )
    return x[last]


def turn_sums(values: torch.Tensor, step: torch.Tensor, seq_of_step: torch.Tensor, n: int) -> torch.Tensor:
    """f[S]: the sum over a sequence's turns of their tokens' mean. values f[N]; step i64[N]; seq_of_step i64[K].

    >>> turn_sums(torch.tensor([1.0, 3.0, 1.0]), torch.tensor([0, 0, 1]), torch.tensor([0, 0]), 1)  # 2 and 1
    tensor([3.])
    """
    return seq_sum(seq_mean(values, step, len(seq_of_step)), seq_of_step, n)
