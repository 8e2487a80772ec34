"""Value losses: terms of a critic. `returns` comes from an assigner (gae) and is a constant."""

from __future__ import annotations

from ..core import Token, block
from ..core.lazy import torch


@block
def value_loss(*, critic_value: Token, returns: Token) -> Token:
    """Squared error of the value per token (Schulman et al. 2017, 1707.06347, eq. 9, L^VF).

        l = (V - R)^2

    Args: critic_value, returns f[N]. Returns: l f[N].
    """
    return (critic_value - returns) ** 2


@block
def clipped_value_loss(*, critic_value: Token, prox_critic_value: Token, returns: Token, clip: float = 0.2) -> Token:
    """The clipped value loss of PPO's code, in which a critic moves in small steps.

        l = max((V - R)^2, (V_old + clip(V - V_old, -clip, clip) - R)^2)

    Args: critic_value, prox_critic_value (V_old, before the update), returns f[N].
    Returns: l f[N]. Equals: `value_loss` at clip = inf.

    >>> value, old = torch.tensor([1.0]), torch.tensor([0.0])
    >>> clipped_value_loss(critic_value=value, prox_critic_value=old, returns=value)  # (0 + 0.2 - 1)^2
    tensor([0.6400])
    """
    clipped = prox_critic_value + (critic_value - prox_critic_value).clamp(-clip, clip)
    return torch.maximum((critic_value - returns) ** 2, (clipped - returns) ** 2)


@block
def success_loss(*, critic_value: Token, target: Token) -> Token:
    """Squared error of a critic that predicts a probability per token.

        l = (sigmoid(V) - p)^2

    p is a success rate in PCL (Gao et al. 2025, 2510.01135, algorithm 1), the value of a partial solution in ReST-MCTS*
    (Zhang et al. 2024, 2406.03816, section 3.3).

    Args: critic_value f[N], before the sigmoid; target f[N] in [0, 1]. Returns: l f[N].

    >>> success_loss(critic_value=torch.tensor([0.0]), target=torch.tensor([0.75]))  # (1/2 - 3/4)^2
    tensor([0.0625])
    """
    return (critic_value.sigmoid() - target) ** 2
