"""Terms that imitate: tokens given by a demonstration or chosen for their reward."""

from __future__ import annotations

from ..core import Token, block


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
def uncertain_nll(*, logp: Token) -> Token:
    """Likelihood of the tokens that are neither mastered nor alien: -sg(p (1 - p)) logp, p = exp(logp) (the phi of CHORD, 2508.11408).

    The weight is largest at p = 1/2 and vanishes at 0 and 1; it is a constant to the gradient. Args: logp f[N]. Returns: l f[N].

    >>> import torch
    >>> uncertain_nll(logp=torch.tensor([0.5, 0.9]).log())  # 1/4 log 2, 0.09 * 0.1054
    tensor([0.1733, 0.0095])
    """
    p = logp.detach().exp()
    return -p * (1 - p) * logp
