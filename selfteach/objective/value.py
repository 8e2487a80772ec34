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
def score_fit(*, vm_scalar_after: Token, target: Token) -> Token:
    """(sigmoid(s) - y)^2: a value model's score after a token, fitted to a value between 0 and 1 (ReST-MCTS*, 2406.03816, section 3.3).

    Args: vm_scalar_after, the scalar head of the member vm; target f[N]. Returns: l f[N].
    """
    return (torch.sigmoid(vm_scalar_after) - target) ** 2
