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
