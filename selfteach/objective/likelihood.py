"""Terms that imitate: tokens given by a demonstration or chosen for their reward."""

from __future__ import annotations

from typing import Literal

import torch

from ..core import BadValue, Token, block


@block
def nll(*, logp: Token) -> Token:
    """Negative log-likelihood per token: supervised training, rejection sampling, behaviour cloning. Args: logp f[N]. Returns: l f[N]."""
    return -logp


@block
def weighted_nll(*, logp: Token, adv: Token) -> Token:
    """Likelihood of what was good, and nothing for the rest: -max(A, 0) logp (self-imitation, Oh et al. 2018, 1806.05635, eq. 2).

    Args: logp, adv f[N]. Returns: l f[N]. Equals: `policy_gradient` where A > 0.
    """
    return -adv.clamp(min=0.0) * logp


@block
def implicit_negative(
    *,
    logp: Token,
    old_logp: Token,
    reward: Token,
    rate: Token,
    neg_weight: float = 1.0,
    floor: float = 1.0,
    most: float = 10.0,
    edge: float = 0.02,
    scale: Literal["none", "center", "norm"] = "center",
) -> Token:
    """Likelihood of right answers, and of wrong ones under the policy that is left over (Chen et al. 2025, NFT, 2505.18116, eq. 10).

        -w [r log R + neg_weight (1 - r) log max((1 - q R) / (1 - q), floor)],   R = pi / old,  q the group's rate of right answers

    The sampler is the mixture q pi+ + (1 - q) pi-; with pi+ the policy, the second logarithm is pi- / old. max holds the value and passes
    the gradient through; log R ends at `most`, q lies in [edge, 1 - edge].
    scale: w = 1 ("none"), 1 - q ("center": at R = 1 the gradient of `center`'s advantage), sqrt((1 - q) / q) ("norm": of GRPO's).
    Args: logp, old_logp, reward (0 or 1), rate f[N]. Returns: l f[N]. Equals: at neg_weight 0 w times `nll` of right answers (RFT).

    >>> one = torch.ones(1)
    >>> implicit_negative(logp=one.log(), old_logp=(2 * one).log(), reward=0 * one, rate=0.5 * one, floor=0.0)  # -1/2 log(1.5)
    tensor([-0.2027])
    """
    q = rate.clamp(edge, 1 - edge)
    weights = {"none": torch.ones_like(q), "center": 1 - q, "norm": torch.sqrt((1 - q) / q)}
    if scale not in weights:
        raise BadValue(f"implicit_negative: scale must be one of {', '.join(weights)}, not {scale!r}")
    gap = (logp - old_logp).clamp(max=most)
    left = (1 - q * gap.exp()) / (1 - q)
    left = left + (left.clamp(min=floor) - left).detach()
    # of a right answer only the first logarithm is asked for, since the other may be that of nothing
    negative = torch.log(torch.where(reward == 1, 1.0, left)) * (1 - reward)
    return -weights[scale] * (reward * gap + neg_weight * negative)


@block
def uncertain_nll(*, logp: Token) -> Token:
    """Likelihood of the tokens that are neither mastered nor alien: -sg(p (1 - p)) logp, p = exp(logp) (the phi of CHORD, 2508.11408).

    The weight is largest at p = 1/2 and vanishes at 0 and 1; it is a constant to the gradient. Args: logp f[N]. Returns: l f[N].

    >>> import torch
    >>> uncertain_nll(logp=torch.tensor([0.5, 0.9]).log())  # 1/4 log 2, 0.09 * 0.1054
    tensor([0.1733, 0.0095])
    """
    p = logp.detach().exp()
    return -p * (1 - p) * logp
