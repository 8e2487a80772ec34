"""Maximum-likelihood terms: imitation of demonstrations, or of samples with a high reward."""

from __future__ import annotations

from ..core import Token, block


@block
def nll(*, logp: Token) -> Token:
    """Negative log-likelihood per token: supervised training, rejection sampling, behaviour cloning.

    Args: logp f[N]. Returns: l f[N].
    """
    return -logp


@block
def weighted_nll(*, logp: Token, adv: Token) -> Token:
    """Self-imitation: the likelihood of tokens with a positive advantage (Oh et al. 2018, 1806.05635, eq. 2).

        l = -max(A, 0) logp

    Args: logp, adv f[N]. Returns: l f[N]. Equals: `policy_gradient` where A > 0.
    """
    return -adv.clamp(min=0.0) * logp
