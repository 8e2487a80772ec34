"""Drawing tokens: one uniform each, by inverse CDF, every row under its own settings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..model import quantities

ROWS = 8  # rows of logits are padded to a multiple of it where torch works on them


class Draw(NamedTuple):
    """ids i64[R], and their logp f32[R] under the true sampling distribution."""

    ids: Tensor
    logp: Tensor


def padded(rows: np.ndarray) -> np.ndarray:
    """Rows, the first one repeated at the end until their number is a multiple of 8."""
    return np.concatenate([rows, np.repeat(rows[:1], -len(rows) % ROWS)])


def tempered(logits: Tensor, temperature: np.ndarray) -> Tensor:
    """Log-probabilities f32[R, V] of logits [R, V] at a temperature for each row (0: at 1), before truncation."""
    return quantities.logprobs(logits, torch.from_numpy(np.where(temperature == 0, 1, temperature).astype(np.float32)).to(logits.device))


def draw(logits: Tensor, temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, uniform: np.ndarray) -> Draw:
    """Draw from logits [R, V]; temperature, top_k, top_p and uniform [R]. Temperature 0 takes the greatest, with logp 0.

    Each row's bits depend on that row alone; the sort is paid only where some row truncates.
    """
    place = logits.device
    greedy = temperature == 0
    whole = tempered(logits, temperature)
    kept = whole
    cut = (top_k > 0) | (top_p < 1)
    if cut.any():
        some = torch.from_numpy(cut).to(place)[:, None]
        kept = torch.where(some, truncate(whole, torch.from_numpy(top_k).to(place), torch.from_numpy(top_p).to(place)), whole)
    cdf = kept.exp().cumsum(-1, dtype=torch.float64)
    # The first id whose CDF lies above the target has a chance above 0. There is one: a uniform is at most 1 - 2^-53, and a double
    # times that rounds below itself. The bound is for rows that are not numbers, which the caller refuses.
    target = torch.from_numpy(uniform).to(place)[:, None] * cdf[:, -1:]
    ids = torch.searchsorted(cdf, target, right=True).clamp_(max=logits.shape[-1] - 1)
    logp = kept.gather(-1, ids)[:, 0]
    ids = ids[:, 0]
    if greedy.any():
        top = torch.from_numpy(greedy).to(place)
        ids = torch.where(top, logits.argmax(-1), ids)
        logp = torch.where(top, torch.where(whole[:, 0].isnan(), whole[:, 0], 0.0), logp)  # logits that are not numbers stay seen
    return Draw(ids, logp)


def truncate(logprobs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Keep the top_k likeliest ids (0: all), of these the fewest that hold the share top_p (1: all), and renormalise: [R, V] -> [R, V]."""
    ordered, order = torch.sort(logprobs, dim=-1, descending=True, stable=True)
    rank = torch.arange(logprobs.shape[-1], device=logprobs.device)
    keep = rank < torch.where(top_k > 0, top_k, logprobs.shape[-1])[:, None]
    mass = torch.where(keep, ordered.exp(), 0.0).double()
    upto = mass.cumsum(-1)
    share = torch.where(top_p < 1, top_p, torch.inf)[:, None]
    keep &= upto - mass < share * upto[:, -1:]
    kept = torch.full_like(logprobs, -torch.inf).scatter_(-1, order, torch.where(keep, ordered, -torch.inf))
    return kept - kept.logsumexp(-1, keepdim=True)
