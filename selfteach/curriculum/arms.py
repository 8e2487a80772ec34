"""A bandit over kinds of tasks: which kind to ask, by how much was lately learned from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core import BadValue, Group, History, Request, Source, Task, address, block, remembers
from .select import start

LOOK = 256  # tasks that are looked through for the kinds there are
FAR = 4096  # and for the next task of one kind, before it is given up


def softmax(values: Sequence[float], temperature: float) -> np.ndarray:
    """exp(v / temperature) over its sum: f64[n]. >>> softmax([0.0, np.log(3)], 1.0) -> [0.25, 0.75]"""
    v = np.asarray(values, np.float64) / temperature
    e = np.exp(v - v.max())
    return e / e.sum()


def credited(q: Mapping[str, float], asked: Mapping[str, str], history: History, rate: float) -> dict[str, float]:
    """Values of the arms after a step: Q <- rate * r + (1 - rate) * Q, r the mean over the arm's tasks of their mean |advantage|.

    q: arm -> value. asked: task id -> arm, of the step that is over. An arm that no known task speaks for keeps its value.
    """
    found: dict[str, list[float]] = {}
    for task, arm in asked.items():
        if "adv" in history.tasks.get(task, {}):
            found.setdefault(arm, []).append(history.tasks[task]["adv"])
    return {arm: value if arm not in found else rate * float(np.mean(found[arm])) + (1 - rate) * value for arm, value in q.items()}


@block
@remembers(lambda: {"q": {}, "next": {}, "asked": {}})
def frontier_arms(
    *,
    n: int,
    rollouts: int,
    back: list[list[Group]],
    source: Source,
    history: History,
    step: int,
    seed: int,
    tell: Callable[..., None],
    state: dict[str, Any],
    by: str = "category",
    rate: float = 0.5,
    temperature: float = 0.5,
) -> tuple[list[Request], dict[str, Any]]:
    """`n` tasks, each of an arm drawn by softmax(Q / temperature); the arms are the values of the tag `by`.

        Q_{t+1}(c) = rate * r_t(c) + (1 - rate) * Q_t(c),  r_t(c) = mean |advantage| over what was asked of c;  0 at first

    Chen et al. 2025 (2505.14970). Within an arm tasks come in the source's order and none twice. Tells each arm's probability as
    select/p/ARM, and the mean of the tag `difficulty` of what is asked. Raises BadValue where tasks lack the tag.
    """
    if back:
        return [], state
    first = start(seed)
    place: dict[str, int] = dict(state["next"]) or _kinds(source, by, first)
    q = credited({arm: state["q"].get(arm, 0.0) for arm in place}, state["asked"], history, rate)
    names = sorted(place)
    chance = softmax([q[arm] for arm in names], temperature)
    draws = address.uniform(address.key(seed, "arms", step), np.arange(n))
    tasks: list[Task] = []
    asked: dict[str, str] = {}
    for at in np.minimum(np.searchsorted(np.cumsum(chance), draws, "right"), len(names) - 1).tolist():
        task, place[names[at]] = _next(source, by, names[at], place[names[at]])
        asked[task.id] = names[at]
        tasks.append(task)
    tell(**{f"p/{arm}": p for arm, p in zip(names, chance.tolist(), strict=True)}, **difficulty(tasks))
    return [Request(task, rollouts) for task in tasks], {"q": q, "next": place, "asked": asked}


def difficulty(tasks: Sequence[Task]) -> dict[str, float]:
    """The mean of the tasks' tag `difficulty`, to be told; nothing where they do not all have it."""
    known = [float(t.tags["difficulty"]) for t in tasks if "difficulty" in t.tags]
    return {"difficulty": sum(known) / len(known)} if known and len(known) == len(tasks) else {}


def _kinds(source: Source, by: str, first: int) -> dict[str, int]:
    """Arm -> the number of its first task, among the first LOOK tasks of a run."""
    found: dict[str, int] = {}
    for i in range(first, first + LOOK):
        tags = source.train(i).tags
        if by not in tags:
            raise BadValue(f"select: a task of {source.name} has no tag {by!r} to tell arms by; it has {', '.join(tags) or 'none'}")
        found.setdefault(str(tags[by]), i)
    return found


def _next(source: Source, by: str, arm: str, at: int) -> tuple[Task, int]:
    """The next task of an arm from number `at` on, and where to look for the one after."""
    for i in range(at, at + FAR):
        if str((task := source.train(i)).tags.get(by)) == arm:
            return task, i + 1
    raise BadValue(f"select: no further task of {source.name} has {by} {arm!r} within {FAR}")
