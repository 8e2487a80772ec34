"""Entropy regularisation."""

from __future__ import annotations

from ..core import Token, block


@block
def entropy_bonus(*, entropy: Token) -> Token:
    """The negative entropy of the next-token distribution (Williams & Peng 1991; Mnih et al. 2016).

        l = -H        so that a positive coefficient keeps the entropy high

    Args: entropy f[N], a quantity of the learner's forward pass over the whole vocabulary. Returns: l f[N].
    """
    return -entropy
