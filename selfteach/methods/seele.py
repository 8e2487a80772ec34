"""SEELE, capability-adaptive hints (Li et al. 2025, arXiv 2509.06923).

Each problem comes with a hint, the first part of its solution, of the length at which an item-response curve fitted to
its rollouts so far predicts an accuracy of one half.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core import (
    BadValue,
    Claim,
    Method,
    RolloutGroup,
    RolloutRequest,
    Task,
    TaskSource,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..curriculum.select import known_rewards, pool_tasks
from .grpo import grpo

SLOPES = np.geomspace(2.0, 40.0, 25)  # grid of a
MIDDLES = np.linspace(-0.5, 1.5, 81)  # grid of b
PRIOR = (8.0, 0.5)  # a and b that the fit is regularised to
MAX_C = 0.5


@method(family="guidance", paper="2509.06923", catalogue=30)
def seele(
    groups: int = 16,
    rollouts: int = 8,
    rounds: int = 4,
    target: float = 0.5,
    size: int = 256,
    highest: float = 0.95,
    fixed: float | None = None,
) -> Method:
    """GRPO whose rollouts come in rounds, each after the prefix of the solution that a fitted curve prescribes.

        accuracy at hint rate l:  f(l) = c + (1 - c) / (1 + exp(-a (l - b)))
        next l = f^-1(target)

    Li et al. 2025, section 3; f is fitted to this step's (hint rate, accuracy) pairs of the problem. All rounds are one
    group; hints are prompt, without loss. Prompts come from a pool of `size`, so that a visit begins with the rate that
    the last one ended with. highest: the largest rate. fixed: always this rate, in one round.
    """
    select = responsive_hints(rounds=rounds, target=target, size=size, highest=highest, fixed=fixed)
    return grpo(groups=groups, rollouts=rollouts).replace(select=select)


@block
@stateful(lambda: {"next": 0, "rates": {}})
def responsive_hints(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    log_metrics: Callable[..., None],
    state: dict[str, Any],
    rounds: int = 4,
    target: float = 0.5,
    size: int = 256,
    first: float = 0.0,
    highest: float = 0.95,
    fixed: float | None = None,
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """`n` tasks of a pool of `size`, each with its `rollouts` in `rounds` rounds of different hint rates, as one group.

        l <- f^-1(target), clipped to [0, highest],   f fitted to this visit's (rate, accuracy) pairs

    Round 1 has the rate that the task's last visit ended with (`first` where there was none). The hint is the first
    share l of the words of the tag `solution`. fixed: always this rate, in one round. Metrics: the mean rate of the
    step's rollouts (select/hint) and of its last round (select/ends). Raises BadValue where a task has no solution. Li
    et al. 2025, section 3.
    """
    rounds = 1 if fixed is not None else min(rounds, rollouts)
    sizes = [rollouts // rounds + (i < rollouts % rounds) for i in range(rounds)]
    if not finished_rounds:
        tasks = pool_tasks(source, seed, state["next"], n, size)
        rates = [float(state["rates"].get(t.id, first)) if fixed is None else fixed for t in tasks]
        requests = [_with_hint(t, rate, sizes[0], None) for t, rate in zip(tasks, rates, strict=True)]
        return requests, {**state, "next": state["next"] + n}
    visits = [list(groups) for groups in zip(*finished_rounds, strict=True)]  # of each task, its groups so far
    next_rates = [_next_rate(visit, target, highest) if fixed is None else fixed for visit in visits]
    if len(finished_rounds) < rounds:
        pairs = zip(finished_rounds[0], next_rates, strict=True)
        return [_with_hint(g.request.task, rate, sizes[len(finished_rounds)], g.key) for g, rate in pairs], state
    rates = [(g.request.help["rate"], g.request.n) for round_ in finished_rounds for g in round_]
    ends = [g.request.help["rate"] for g in finished_rounds[-1]]
    log_metrics(hint=math.fsum(r * k for r, k in rates) / sum(k for _, k in rates), ends=math.fsum(ends) / len(ends))
    updated = {g.request.task.id: rate for g, rate in zip(finished_rounds[0], next_rates, strict=True)}
    return [], {**state, "rates": {**state["rates"], **updated}}


def _with_hint(task: Task, rate: float, n: int, key: str | None) -> RolloutRequest:
    """A request of `n` rollouts with the hint of a rate in its `help`."""
    if "solution" not in task.tags:
        raise BadValue(
            f"responsive_hints: task {task.id} has no tag 'solution' for hints; take a task that has worked solutions"
        )
    return RolloutRequest(task, n, key=key, help={"hint": prefix(str(task.tags["solution"]), rate), "rate": rate})


def prefix(text: str, rate: float) -> str:
    """The first share `rate` of a text's words, spaces before them included; never the last word.

    >>> prefix("a b c d", 0.5), prefix("a b", 1.0)
    ('a b', 'a')
    """
    words = re.findall(r"\s*\S+", text)
    return "".join(words[: min(int(rate * len(words)), len(words) - 1)])


def _next_rate(visit: list[RolloutGroup], target: float, highest: float) -> float:
    """The hint rate at which the curve through one task's rounds has the target accuracy."""
    points = [
        (float(g.request.help["rate"]), math.fsum(known) / len(known), len(known))
        for g in visit
        if (known := known_rewards(g))
    ]
    return min(max(fit(points).inverse(target), 0.0), highest)


class Curve(NamedTuple):
    """f(l) = c + (1 - c) / (1 + exp(-a (l - b))): item response theory's three-parameter logistic (Birnbaum 1968)."""

    a: float
    b: float
    c: float

    def __call__(self, rate: float) -> float:
        """The accuracy at a hint rate."""
        return self.c + (1.0 - self.c) / (1.0 + float(np.exp(-self.a * (rate - self.b))))

    def inverse(self, accuracy: float) -> float:
        """The hint rate of an accuracy below 1; minus infinity where the curve is above it everywhere."""
        share = (accuracy - self.c) / (1.0 - self.c)
        return self.b + float(np.log(share / (1.0 - share))) / self.a if share > 0 else -np.inf


def fit(points: Sequence[tuple[float, float, int]], prior: float = 0.1) -> Curve:
    """The least-squares curve through (rate, accuracy, rollouts) points, each weighted by its number of rollouts.

        minimise sum_i n_i (f(l_i) - y_i)^2 + prior [log(a / 8)^2 + (2 (b - 1/2))^2 + c^2],   c in [0, 1/2]

    A grid search over a and b; for each pair c, in which f is linear, is solved for. The prior is chosen here: the
    paper leaves open how one or two points determine three parameters. Without points it is the prior's own curve.
    """
    rate, y, n = (np.array([p[k] for p in points], np.float64) for k in range(3))
    a, b = SLOPES[:, None, None], MIDDLES[None, :, None]
    s = 1.0 / (1.0 + np.exp(-a * (rate - b)))  # [A, B, points]
    c = ((n * (y - s) * (1 - s)).sum(-1) / ((n * (1 - s) ** 2).sum(-1) + prior)).clip(0.0, MAX_C)
    loss = (n * (s + c[..., None] * (1 - s) - y) ** 2).sum(-1)
    loss += prior * (np.log(a[..., 0] / PRIOR[0]) ** 2 + (2 * (b[..., 0] - PRIOR[1])) ** 2 + c**2)
    i, j = np.unravel_index(int(loss.argmin()), loss.shape)
    return Curve(float(SLOPES[i]), float(MIDDLES[j]), float(c[i, j]))


seele.claim = Claim(
    (
        premise("early:rollout/mixed_group_fraction", "unhinted", 0.6, relation="<", by=0.0, fails_at=0.7),
        # at an accuracy of one half fewer groups are all right or all wrong
        mechanism("early:rollout/mixed_group_fraction", "self", "unhinted", by=0.05, fails_at=0.95),
        mechanism("late:select/hint", "self", "early:select/hint of self", by=0.05, relation="<", fails_at=0.0),
        outcome("accuracy", "self", "unhinted", by=0.05, fails_at=0.99),
        outcome("auc", "self", "unhinted", by=0.05, fails_at=0.99),
        outcome("accuracy", "self", "half", by=0.02, fails_at=0.99),
    ),
    arms={"unhinted": ("seele", {"fixed": 0.0}), "half": ("seele", {"fixed": 0.5})},
    regime="steep",
    first_seed=300,
    idea=("main.select",),
    because="a step gains most at an accuracy of one half, and an item-response curve finds the hint rate that gives "
    "it, at which none of a prompt's rollouts are in vain and which falls as the policy learns",
)
