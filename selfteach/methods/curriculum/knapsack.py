"""Knapsack RL: rollouts where they are worth most."""

from __future__ import annotations

from ...core import Check, Claim, Method, method
from ...curriculum.budget import budgeted_pool
from ..objective.grpo import grpo


@method(
    family="curriculum",
    paper="2509.25849",
    catalogue=241,
    claim=Claim(
        (
            Check("late:episodes/mixed", "self", "uniform", by=0.20, scale="ratio"),
            Check("accuracy", "self", "uniform", by=0.02),
            Check("late:select/most", "self", 24.0),
        ),
        arms={"uniform": ("knapsack", {"low": 8, "high": 8})},
        task="chain_sum",
        knobs={"terms": (2, 8), "style": "terse"},
        steps=60,
        because="rollouts that solved prompts do not need make gradients where success is rare",
    ),
)
def knapsack(groups: int = 16, rollouts: int = 8, size: int = 256, low: int = 2, high: int = 128, enough: float = 0.99) -> Method:
    """Knapsack RL: a fixed number of rollouts is shared out over prompts by what they are worth at each prompt's success rate p.

        max sum_i worth(n_i, p_i),  sum_i n_i = groups * rollouts,  low <= n_i <= high        worth = [1 - p^n - (1-p)^n] p (1-p)^2

    Li et al. 2025, sections 4 and 5; p is of the prompt's last visit. The paper solves it by dynamic programming; worth is concave in n,
    so that a greedy choice gives the same. low = high = rollouts is GRPO on a pool. Sequences count alike: a prompt counts by its rollouts.
    """
    return grpo(groups=groups, rollouts=rollouts).but(select=budgeted_pool(size=size, low=low, high=high, enough=enough))
