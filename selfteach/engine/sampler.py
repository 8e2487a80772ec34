"""Drawing tokens: one uniform each, by inverse CDF, every row under its own settings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..model import quantities

ROWS = 8  # rows of logits are padded to a multiple of it where torch works on them
BLOCK = 256  # ids summed up before one of them is looked for
LIKELY = 1024  # ids among which a truncation is sought before all are sorted


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

    Each row's bits depend on that row alone; what truncation costs is paid for the rows that truncate.
    """
    place = logits.device
    greedy = temperature == 0
    whole = tempered(logits, temperature)
    kept = whole
    cut = np.flatnonzero((top_k > 0) | (top_p < 1))
    if len(cut):
        rows, k, p = (torch.from_numpy(x).to(place) for x in (cut, top_k[cut], top_p[cut]))
        kept = whole.index_copy(0, rows, truncate(whole[rows], k, p))
    ids = invert(kept.exp(), torch.from_numpy(uniform).to(place)[:, None])
    logp = kept.gather(-1, ids)[:, 0]
    ids = ids[:, 0]
    if greedy.any():
        top = torch.from_numpy(greedy).to(place)
        ids = torch.where(top, logits.argmax(-1), ids)
        logp = torch.where(top, torch.where(whole[:, 0].isnan(), whole[:, 0], 0.0), logp)  # logits that are not numbers stay seen
    return Draw(ids, logp)


def invert(p: Tensor, uniform: Tensor) -> Tensor:
    """The ids at which the CDF of p f32[R, V] (up to a factor) passes uniform f64[R, 1]: i64[R, 1], each of a chance above 0.

    The CDF is made over blocks of ids, and then of the ids of one block: a double per id would be most of the work.
    """
    size = p.shape[-1]
    p = F.pad(p, (0, -size % BLOCK)).view(len(p), -1, BLOCK)
    cdf = p.sum(-1).cumsum(-1, dtype=torch.float64)
    # The first whose CDF lies above the target has a chance above 0. There is one: a uniform is at most 1 - 2^-53, and a double times
    # that rounds below itself. The bounds are for rows that are not numbers, which the caller refuses.
    target = uniform * cdf[:, -1:]
    block = torch.searchsorted(cdf, target, right=True).clamp_(max=p.shape[1] - 1)
    low = torch.where(block > 0, cdf.gather(-1, (block - 1).clamp_(min=0)), 0.0)
    share = ((target - low) / (cdf.gather(-1, block) - low)).clamp_(max=1 - 2.0**-53)
    inside = p.gather(1, block[..., None].expand(-1, -1, BLOCK))[:, 0].cumsum(-1, dtype=torch.float64)
    at = torch.searchsorted(inside, share * inside[:, -1:], right=True).clamp_(max=BLOCK - 1)
    return (block * BLOCK + at).clamp_(max=size - 1)


def truncate(logprobs: Tensor, top_k: Tensor, top_p: Tensor, likely: int = LIKELY) -> Tensor:
    """Keep the top_k likeliest ids (0: all), of these the fewest that hold the share top_p (1: all), and renormalise: [R, V] -> [R, V].

    Of equally likely ids the first are kept. Where the `likely` likeliest ids do not settle a row, all are sorted.
    """
    size = logprobs.shape[-1]
    likely = min(size, max(likely if (top_k == 0).any() else 1, int(top_k.max())))
    ordered = logprobs.sort(-1, descending=True).values if likely == size else logprobs.topk(likely).values
    rank = torch.arange(likely, device=logprobs.device)
    keep = rank < torch.where(top_k > 0, top_k, size)[:, None]
    mass = torch.where(keep, ordered.exp(), 0.0).double()
    upto = mass.cumsum(-1)
    if (top_p < 1).any():
        every = torch.where(top_k[:, None] > 0, upto[:, -1:], logprobs.exp().sum(-1, keepdim=True, dtype=torch.float64))
        keep &= upto - mass < torch.where(top_p < 1, top_p, torch.inf)[:, None] * every
    count = keep.sum(-1, keepdim=True)
    least = count.clamp(min=1) - 1
    last = ordered.gather(-1, least)  # the log-probability of the least likely that is kept
    stays = logprobs >= last
    spare = count - (ordered > last).sum(-1, keepdim=True)
    if ((ordered == last).sum(-1, keepdim=True) > spare).any() or (likely < size and (ordered[:, -1:] == last).any()):
        equal = logprobs == last
        stays &= ~equal | (equal.cumsum(-1) <= spare)
    # Summed one after the other, so that how many were looked at changes no bit.
    kept = torch.where(stays, logprobs - upto.gather(-1, least).log().to(logprobs.dtype), -torch.inf)
    if likely == size:
        return kept
    unsettled = torch.nonzero(keep[:, -1] & (top_k == 0))[:, 0]
    if not len(unsettled):
        return kept
    return kept.index_copy(0, unsettled, truncate(logprobs[unsettled], top_k[unsettled], top_p[unsettled], size))
