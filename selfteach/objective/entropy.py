"""Terms that keep the policy open."""

from __future__ import annotations

from ..core import Token, block


@block
def entropy_bonus(*, entropy: Token) -> Token:
    """-H of the next-token distribution, so that a positive coefficient keeps it high (Williams & Peng 1991; Mnih et al. 2016).

    Args: entropy f[N], a quantity of the learner's forward pass over the whole vocabulary. Returns: l f[N].
    """
    return -entropy
