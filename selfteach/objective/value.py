"""Terms that teach a critic. `returns` comes from an assigner (gae) and is a constant."""

from __future__ import annotations

import torch

from ..core import Token, block


@block
def value_loss(*, critic_value: Token, returns: Token) -> Token:
    """(V - R)^2 per token (Schulman et al. 2017, 1707.06347, eq. 9, L^VF). Args: critic_value, returns f[N]. Returns: l f[N]."""
    return (critic_value - returns) ** 2


@block
def clipped_value_loss(*, critic_value: Token, prox_critic_value: Token, returns: Token, clip: float = 0.2) -> Token:
    """The larger of (V - R)^2 and (V_old + clip(V - V_old, -clip, clip) - R)^2: a critic that moves in small steps (PPO's code).

    Args: critic_value, prox_critic_value (as the update began), returns f[N]. Returns: l f[N]. Equals: `value_loss` at clip = inf.

    >>> clipped_value_loss(critic_value=torch.tensor([1.0]), prox_critic_value=torch.tensor([0.0]), returns=torch.tensor([1.0]))  # 0.8^2
    tensor([0.6400])
    """
    held = prox_critic_value + (critic_value - prox_critic_value).clamp(-clip, clip)
    return torch.maximum((critic_value - returns) ** 2, (held - returns) ** 2)


@block
def success_loss(*, critic_value: Token, target: Token) -> Token:
    """(sigmoid(V) - p)^2 per token: a critic that predicts a share of successes (Gao et al. 2025, PCL, 2510.01135, algorithm 1).

    Args: critic_value f[N], before the sigmoid; target f[N] in 0 to 1. Returns: l f[N].

    >>> success_loss(critic_value=torch.tensor([0.0]), target=torch.tensor([0.75]))  # (1/2 - 3/4)^2
    tensor([0.0625])
    """
    return (critic_value.sigmoid() - target) ** 2
