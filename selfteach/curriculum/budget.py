"""How many rollouts each prompt gets out of a fixed number: a knapsack whose items are prompts."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np

from ..core import BadValue, Group, History, Request, Source, block, remembers
from .select import round_of


def chance_mixed(n: int, p: float) -> float:
    """The chance that n rollouts of success rate p are not all alike: 1 - p^n - (1 - p)^n. Below two rollouts it is 0."""
    return 1.0 - p**n - (1.0 - p) ** n if n > 0 else 0.0


def worth(n: int, p: float) -> float:
    """What n rollouts of a prompt are worth: (1 - p^n - (1-p)^n) * p (1-p)^2, concave in n; the gain is largest at p = 1/3.

    Li et al. 2025 (2509.25849): the chance of a gradient, times the first-order gain in success from one update.
    """
    return chance_mixed(n, p) * p * (1.0 - p) ** 2


def allocate(rates: Sequence[float], total: int, low: int, high: int, enough: float = 0.99) -> list[int]:
    """Rollouts per prompt, 1 <= low <= n_i <= high, sum = total as far as the bounds allow, so that sum_i worth(n_i, p_i) is largest.

    Worth is concave from n = 1 on, so that giving rollouts one by one to where the next is worth most is optimal (at enough = 1). A prompt is
    saturated where a gradient is as sure as `enough`. What is then left goes to never-solved prompts in turn, whose worth as estimated
    is 0 but which only more tries can open; then to solved ones' betters again, and to solved ones last.
    """
    if low < 1:
        raise BadValue(f"allocate: low must be at least 1 rollout, not {low}")
    given = [low] * len(rates)
    left = max(0, total - low * len(rates))
    inside = [i for i, p in enumerate(rates) if 0.0 < p < 1.0]
    caps = {i: next((n for n in range(low, high) if chance_mixed(n, rates[i]) >= enough), high) for i in inside}
    left = _by_worth(given, rates, caps, left)
    left = _in_turn(given, [i for i, p in enumerate(rates) if p <= 0.0], left, high)
    left = _by_worth(given, rates, dict.fromkeys(inside, high), left)
    _in_turn(given, [i for i, p in enumerate(rates) if p >= 1.0], left, high)
    return given


def _by_worth(given: list[int], rates: Sequence[float], caps: dict[int, int], left: int) -> int:
    """Give rollouts where the next is worth most, ties to the earlier prompt; returns what is left."""
    gain = lambda i: worth(given[i], rates[i]) - worth(given[i] + 1, rates[i])  # noqa: E731  negative: a heap gives the smallest
    heap = [(gain(i), i) for i, cap in caps.items() if given[i] < cap]
    heapq.heapify(heap)
    while left and heap:
        _, i = heapq.heappop(heap)
        given[i] += 1
        left -= 1
        if given[i] < caps[i]:
            heapq.heappush(heap, (gain(i), i))
    return left


def _in_turn(given: list[int], some: Sequence[int], left: int, high: int) -> int:
    """Give rollouts to the one of some prompts that has fewest, the earlier first; returns what is left."""
    heap = [(given[i], i) for i in some if given[i] < high]
    heapq.heapify(heap)
    while left and heap:
        have, i = heapq.heappop(heap)
        given[i] += 1
        left -= 1
        if have + 1 < high:
            heapq.heappush(heap, (have + 1, i))
    return left


@block
@remembers(int)
def budgeted_pool(
    *,
    n: int,
    rollouts: int,
    back: list[list[Group]],
    source: Source,
    history: History,
    seed: int,
    tell: Callable[..., None],
    state: int,
    size: int = 256,
    low: int = 2,
    high: int = 128,
    enough: float = 0.99,
) -> tuple[list[Request], int]:
    """Walk through a fixed set of `size` tasks as `pool` does; n * rollouts episodes in all, shared out by `allocate`.

    A prompt's success rate is its mean reward at its last visit, held within 0 and 1; one that was never asked gets `rollouts`. Tells
    the largest share (select/most), and how many prompts were never solved and always solved when last asked.
    """
    if back:
        return [], state
    tasks = round_of(source, seed, state, n, size)
    last = [history.tasks.get(t.id, {}).get("reward") for t in tasks]
    old = [i for i, p in enumerate(last) if p is not None]
    rates = [float(np.clip(p, 0.0, 1.0)) for p in last if p is not None]
    shares = [rollouts] * len(tasks)
    for i, share in zip(old, allocate(rates, rollouts * len(old), min(low, rollouts), max(high, rollouts), enough), strict=True):
        shares[i] = share
    tell(most=max(shares), unsolved=sum(p <= 0 for p in rates), solved=sum(p >= 1 for p in rates))
    return [Request(task, share) for task, share in zip(tasks, shares, strict=True)], state + n
