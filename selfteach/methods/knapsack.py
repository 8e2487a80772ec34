"""Knapsack RL (Li et al. 2025, arXiv 2509.25849): a fixed budget of rollouts allocated over prompts.

The allocation solves a knapsack problem whose items are prompts, each with a value by its success rate.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from ..core import (
    BadValue,
    Claim,
    History,
    Method,
    RolloutGroup,
    RolloutRequest,
    TaskSource,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..curriculum.select import pool_tasks
from .grpo import grpo


@method(family="curriculum", paper="2509.25849", catalogue=241)
def knapsack(
    groups: int = 16, rollouts: int = 8, size: int = 256, low: int = 2, high: int = 128, saturation: float = 0.99
) -> Method:
    """GRPO with its rollout budget allocated over prompts by their value at each prompt's success rate p.

        max sum_i value(n_i, p_i)        subject to sum_i n_i = groups * rollouts,  low <= n_i <= high
        value(n, p) = [1 - p^n - (1 - p)^n] p (1 - p)^2

    Li et al. 2025, sections 4 and 5; p is that of the prompt's last visit. The paper solves it by dynamic programming;
    the value is concave in n, so that the greedy solution is the same. low = high = rollouts is GRPO on a pool.
    Sequences have equal weight, so that a prompt's weight is its number of rollouts.
    """
    return grpo(groups=groups, rollouts=rollouts).replace(
        select=budgeted_pool(size=size, low=low, high=high, saturation=saturation)
    )


@block
@stateful(int)
def budgeted_pool(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    history: History,
    seed: int,
    log_metrics: Callable[..., None],
    state: int,
    size: int = 256,
    low: int = 2,
    high: int = 128,
    saturation: float = 0.99,
) -> tuple[list[RolloutRequest], int]:
    """The next `n` tasks of a fixed set as in `pool`, with n * rollouts episodes in all, allocated by `allocate`.

    A prompt's success rate is its mean reward at its last visit, clipped to [0, 1]; a prompt without a visit gets
    `rollouts`. Logs the largest allocation (select/most), and how many prompts had success rate 0 and 1 at their last
    visit (select/unsolved, select/solved).
    """
    if finished_rounds:
        return [], state
    tasks = pool_tasks(source, seed, state, n, size)
    last = [history.tasks.get(t.id, {}).get("reward") for t in tasks]
    visited = [i for i, p in enumerate(last) if p is not None]
    rates = [float(np.clip(p, 0.0, 1.0)) for p in last if p is not None]
    shares = [rollouts] * len(tasks)
    allocation = allocate(rates, rollouts * len(visited), min(low, rollouts), max(high, rollouts), saturation)
    for i, share in zip(visited, allocation, strict=True):
        shares[i] = share
    log_metrics(most=max(shares), unsolved=sum(p <= 0 for p in rates), solved=sum(p >= 1 for p in rates))
    return [RolloutRequest(task, share) for task, share in zip(tasks, shares, strict=True)], state + n


def chance_mixed(n: int, p: float) -> float:
    """The probability that n rollouts of success rate p are not all equal: 1 - p^n - (1 - p)^n; 0 below n = 2."""
    return 1.0 - p**n - (1.0 - p) ** n if n > 0 else 0.0


def prompt_value(n: int, p: float) -> float:
    """The value of n rollouts of a prompt: (1 - p^n - (1 - p)^n) * p (1 - p)^2, concave in n.

    The probability of a gradient, times the first-order gain in success from one update, which is largest at p = 1/3.
    """
    return chance_mixed(n, p) * p * (1.0 - p) ** 2


def allocate(rates: Sequence[float], total: int, low: int, high: int, saturation: float = 0.99) -> list[int]:
    """Rollouts per prompt, 1 <= low <= n_i <= high, that maximise sum_i prompt_value(n_i, p_i).

    They sum to `total` as far as the bounds allow. The value is concave from n = 1 on, so that giving rollouts one by
    one to where the marginal value is largest is optimal (at saturation = 1). A prompt is saturated where a gradient
    has probability `saturation`. The rest of the budget goes in turn to prompts that were never solved, whose estimated
    value is 0 but which only more rollouts can solve; then to the saturated ones by value again, and last to those
    always solved. Raises BadValue where low is below 1.
    """
    if low < 1:
        raise BadValue(f"allocate: low must be at least 1 rollout, not {low}")
    counts = [low] * len(rates)
    remaining = max(0, total - low * len(rates))
    inside = [i for i, p in enumerate(rates) if 0.0 < p < 1.0]
    caps = {i: next((n for n in range(low, high) if chance_mixed(n, rates[i]) >= saturation), high) for i in inside}
    remaining = _by_value(counts, rates, caps, remaining)
    remaining = _in_turn(counts, [i for i, p in enumerate(rates) if p <= 0.0], remaining, high)
    remaining = _by_value(counts, rates, dict.fromkeys(inside, high), remaining)
    _in_turn(counts, [i for i, p in enumerate(rates) if p >= 1.0], remaining, high)
    return counts


def _by_value(counts: list[int], rates: Sequence[float], caps: dict[int, int], remaining: int) -> int:
    """Add rollouts where the next one adds most value, ties to the earlier prompt; returns the rest of the budget."""
    gain = lambda i: prompt_value(counts[i], rates[i]) - prompt_value(counts[i] + 1, rates[i])  # noqa: E731  negative: a min-heap
    heap = [(gain(i), i) for i, cap in caps.items() if counts[i] < cap]
    heapq.heapify(heap)
    while remaining and heap:
        _, i = heapq.heappop(heap)
        counts[i] += 1
        remaining -= 1
        if counts[i] < caps[i]:
            heapq.heappush(heap, (gain(i), i))
    return remaining


def _in_turn(counts: list[int], some: Sequence[int], remaining: int, high: int) -> int:
    """Add rollouts to the prompt of some that has fewest, the earlier first; returns the rest of the budget."""
    heap = [(counts[i], i) for i in some if counts[i] < high]
    heapq.heapify(heap)
    while remaining and heap:
        have, i = heapq.heappop(heap)
        counts[i] += 1
        remaining -= 1
        if have + 1 < high:
            heapq.heappush(heap, (have + 1, i))
    return remaining


knapsack.claim = Claim(
    (
        premise("mean:rollout/mixed_episode_fraction", "uniform", 0.6, relation="<", by=0.0, fails_at=0.7),
        mechanism("mean:rollout/mixed_episode_fraction", "self", "uniform", by=0.2, scale="ratio", fails_at=0.9),
        outcome("accuracy", "self", "uniform", by=0.02, fails_at=0.99),
        outcome("auc", "self", "uniform", by=0.02, fails_at=0.99),
    ),
    arms={"uniform": ("knapsack", {"size": 128, "low": 8, "high": 8})},
    regime="steep",
    first_seed=300,
    args={"size": 128},
    idea=("main.select",),
    equal="tokens",
    because="rollouts that solved prompts do not need find right answers, and so gradients, where these are rare",
)
