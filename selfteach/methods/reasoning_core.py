"""Reasoning Core (Lacombe et al. 2025, arXiv 2509.18083): generated questions whose difficulty is one continuous level.

A level that follows the policy keeps questions within its reach:

    d <- d + gain  where more than gate_high of a step's answers are right,   d <- d - gain  where fewer than gate_low

The generators themselves are the task `reasoning_core` (docs/environments.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    random_keys,
    stateful,
)
from ..curriculum.select import SCANNED, first_task_index, known_rewards, mean_difficulty
from .grpo import grpo

LOOKED_AT = 256  # training tasks by which the easiest and the hardest level are known


@method(family="curriculum", paper="2509.18083", catalogue=295)
def reasoning_core(
    groups: int = 16,
    rollouts: int = 8,
    level: float = 0.0,
    gain: float = 0.5,
    gate_low: float = 0.3,
    gate_high: float = 0.7,
    adaptive: bool = True,
) -> Method:
    """GRPO on questions of one level, which rises where they have become easy and falls where they are too hard.

    level: where it begins, above the task's easiest questions; adaptive=False: where it stays. A level between two of
    the task's is a mixture of both. Lacombe et al. 2025 describe generators with a single knob and leave what turns it
    to others: the band of 30 to 70 %, the rule and the gain were chosen here.
    """
    chosen = adaptive_level(level=level, gain=gain if adaptive else 0.0, gate_low=gate_low, gate_high=gate_high)
    return grpo(groups=groups, rollouts=rollouts).replace(select=chosen)


@block
@stateful(lambda: {"level": None, "range": None, "next": 0})
def adaptive_level(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    log_metrics: Callable[..., None],
    state: dict[str, Any],
    level: float = 0.0,
    gain: float = 0.5,
    gate_low: float = 0.3,
    gate_high: float = 0.7,
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """`n` tasks at a level d of the tag `difficulty`, which follows the share of answers that were right.

        d <- clip(d + gain [success > gate_high] - gain [success < gate_low], easiest, hardest)

    d begins at the easiest plus `level`. A task of difficulty x is taken with the chance max(0, 1 - |x - d|), so that
    whole difficulties are d rounded up or down by chance, with mean d where they are equally frequent; tasks come in
    the source's order, none twice. Metrics: level (above the easiest), difficulty, success, in_band (1 where success is
    from gate_low to gate_high). Raises BadValue where tasks lack the tag.
    """
    if finished_rounds:
        return [], {**state, "level": _next_level(finished_rounds[0], state, log_metrics, gain, gate_low, gate_high)}
    first = first_task_index(seed)
    low, high = state["range"] or _levels(source, first)
    d = min(high, low + level) if state["level"] is None else state["level"]
    tasks, at = list[Task](), state["next"]
    while len(tasks) < n and at < state["next"] + SCANNED * n:
        task = source.train(first + at)
        draw = random_keys.uniform_at(random_keys.key(seed, "level", at), 0)
        if draw < 1 - abs(_difficulty(source, task) - d):
            tasks.append(task)
        at += 1
    if not tasks:
        raise BadValue(f"adaptive_level: {source.name} has no task near difficulty {d:g}; take one with a finer scale")
    log_metrics(level=d - low, **mean_difficulty(tasks))
    return [RolloutRequest(t, rollouts) for t in tasks], {"level": d, "range": [low, high], "next": at}


def _next_level(
    groups: list[RolloutGroup],
    state: dict[str, Any],
    log_metrics: Callable[..., None],
    gain: float,
    gate_low: float,
    gate_high: float,
) -> float:
    """The level after a step's answers; as it was where none has a known reward."""
    known = [min(1.0, max(0.0, reward)) for g in groups for reward in known_rewards(g)]
    if not known:
        return state["level"]
    success = sum(known) / len(known)
    log_metrics(success=success, in_band=float(gate_low <= success <= gate_high))
    low, high = state["range"]
    return min(high, max(low, state["level"] + gain * ((success > gate_high) - (success < gate_low))))


def _levels(source: TaskSource, first: int) -> list[float]:
    """[easiest, hardest] of the first tasks."""
    found = [_difficulty(source, source.train(first + i)) for i in range(LOOKED_AT)]
    return [min(found), max(found)]


def _difficulty(source: TaskSource, task: Task) -> float:
    if "difficulty" not in task.tags:
        raise BadValue(f"adaptive_level: a task of {source.name} has no tag difficulty; take a task with levels")
    return float(task.tags["difficulty"])


reasoning_core.claim = Claim(
    (
        premise("early:select/success", "hard", 0.3, relation="<", fails_at=0.4),  # too hard to begin with
        premise("late:select/success", "easy", 0.7, fails_at=0.6),  # too easy to go on with
        # early, for where the hardest questions are mastered nothing is left that is in the band
        mechanism("early:select/in_band", "self", "easy", by=0.2, fails_at=0.85),
        outcome("accuracy/terms=8", "self", "grpo", by=0.05, fails_at=0.99),  # the hardest
        outcome("accuracy/terms=8", "self", "easy", by=0.05, fails_at=0.99),
        outcome("accuracy/terms=8", "self", "hard", by=0.05, fails_at=0.99),
    ),
    arms={
        "grpo": "grpo",  # all levels, each as often
        "easy": ("reasoning_core", {"adaptive": False}),
        "hard": ("reasoning_core", {"level": 5.0, "adaptive": False}),
    },
    regime="ladder",
    first_seed=400,
    corrected=(
        "on seeds 200 to 207 the share of steps in the band was taken over all steps, although nothing is in it once "
        "the hardest questions are mastered; on 300 to 307 a level that moves was compared with levels that stay, and "
        "not with all levels mixed, which is what a task gives without any choice: holds"
    ),
    idea=("main.select",),
    because="a level that follows the policy asks what some answers get right and some do not, all the way up, and so "
    "comes to the hardest questions sooner than levels at random do",
)
