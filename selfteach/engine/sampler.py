"""Sampling of tokens by inverse CDF, from one uniform per token, every row under its own settings."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..model import quantities

ROW_MULTIPLE = 8  # rows of logits are padded to a multiple of it where torch works on them
BLOCK_IDS = 256  # ids of a block of the CDF
CANDIDATES = 1024  # likeliest ids that truncation tries before it sorts all


class Draw(NamedTuple):
    """Sampled ids i64[R], and their logp f32[R] under the distribution they were drawn from."""

    ids: Tensor
    logp: Tensor


def pad_rows(rows: np.ndarray) -> np.ndarray:
    """Row indices, padded with the first one to a multiple of 8."""
    return np.concatenate([rows, np.repeat(rows[:1], -len(rows) % ROW_MULTIPLE)])


def tempered_logprobs(logits: Tensor, temperature: np.ndarray) -> Tensor:
    """Log-probabilities f32[R, V] of logits [R, V] at a temperature for each row (0: at 1), before truncation."""
    return quantities.logprobs(
        logits, torch.from_numpy(np.where(temperature == 0, 1, temperature).astype(np.float32)).to(logits.device)
    )


def draw(logits: Tensor, temperature: np.ndarray, top_k: np.ndarray, top_p: np.ndarray, uniform: np.ndarray) -> Draw:
    """Draw ids from logits [R, V]; temperature, top_k, top_p and uniform [R].

    Temperature 0 takes the greatest logit, with logp 0. Each row's bits depend on that row alone; only rows with top-k
    or top-p pay for truncation.
    """
    place = logits.device
    greedy = temperature == 0
    whole = tempered_logprobs(logits, temperature)
    kept = whole
    cut = np.flatnonzero((top_k > 0) | (top_p < 1))
    if len(cut):
        rows, k, p = (torch.from_numpy(x).to(place) for x in (cut, top_k[cut], top_p[cut]))
        kept = whole.index_copy(0, rows, truncate(whole[rows], k, p))
    ids = inverse_cdf(kept.exp(), torch.from_numpy(uniform).to(place)[:, None])
    logp = kept.gather(-1, ids)[:, 0]
    ids = ids[:, 0]
    if greedy.any():
        top = torch.from_numpy(greedy).to(place)
        ids = torch.where(top, logits.argmax(-1), ids)
        # NaN logits are kept as NaN, for the caller to refuse.
        logp = torch.where(top, torch.where(whole[:, 0].isnan(), whole[:, 0], 0.0), logp)
    return Draw(ids, logp)


def inverse_cdf(p: Tensor, uniform: Tensor) -> Tensor:
    """The ids i64[R, 1] at which the CDF of p f32[R, V] (up to a factor) passes uniform f64[R, 1].

    Each has a probability above 0. The CDF is computed over blocks of ids, then over the ids of one block: a float64
    per id would be most of the work.
    """
    size = p.shape[-1]
    p = F.pad(p, (0, -size % BLOCK_IDS)).view(len(p), -1, BLOCK_IDS)
    cdf = p.sum(-1).cumsum(-1, dtype=torch.float64)
    # The first block whose CDF is above the target has a probability above 0. There is one: a uniform is at most
    # 1 - 2^-53, and a float64 times that rounds below itself. The clamps are for NaN rows, which the caller refuses.
    target = uniform * cdf[:, -1:]
    block = torch.searchsorted(cdf, target, right=True).clamp_(max=p.shape[1] - 1)
    low = torch.where(block > 0, cdf.gather(-1, (block - 1).clamp_(min=0)), 0.0)
    fraction = ((target - low) / (cdf.gather(-1, block) - low)).clamp_(max=1 - 2.0**-53)
    inside = p.gather(1, block[..., None].expand(-1, -1, BLOCK_IDS))[:, 0].cumsum(-1, dtype=torch.float64)
    at = torch.searchsorted(inside, fraction * inside[:, -1:], right=True).clamp_(max=BLOCK_IDS - 1)
    return (block * BLOCK_IDS + at).clamp_(max=size - 1)


def truncate(logprobs: Tensor, top_k: Tensor, top_p: Tensor, candidates: int = CANDIDATES) -> Tensor:
    """Truncated and renormalised log-probabilities: [R, V] -> [R, V], -inf for ids left out.

    Kept are the top_k likeliest ids (0: all), and of these the fewest whose probabilities sum to the fraction top_p (1:
    all). Of equally likely ids the first are kept. Rows that the likeliest `candidates` ids do not settle are sorted.
    """
    size = logprobs.shape[-1]
    candidates = min(size, max(candidates if (top_k == 0).any() else 1, int(top_k.max())))
    ordered = logprobs.sort(-1, descending=True).values if candidates == size else logprobs.topk(candidates).values
    rank = torch.arange(candidates, device=logprobs.device)
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
    ties_to_keep = count - (ordered > last).sum(-1, keepdim=True)
    if ((ordered == last).sum(-1, keepdim=True) > ties_to_keep).any() or (
        candidates < size and (ordered[:, -1:] == last).any()
    ):
        equal = logprobs == last
        stays &= ~equal | (equal.cumsum(-1) <= ties_to_keep)
    # Summed one after the other, so that the number of candidates changes no bit.
    kept = torch.where(stays, logprobs - upto.gather(-1, least).log().to(logprobs.dtype), -torch.inf)
    if candidates == size:
        return kept
    unsettled = torch.nonzero(keep[:, -1] & (top_k == 0))[:, 0]
    if not len(unsettled):
        return kept
    return kept.index_copy(0, unsettled, truncate(logprobs[unsettled], top_k[unsettled], top_p[unsettled], size))
