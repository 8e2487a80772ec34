"""SearchGym-RL (Zhang et al. 2026, arXiv 2601.14615).

A closed world of facts with a document for each, whose questions can provably be answered by its search engine: a
question is only asked where every fact on its way is found. In such a world rewards are never wrong, and RL goes from
short questions to long and composed ones.

    R = F1 where the form is right, else 0        (a reading)
    stage 1: questions of few facts, until the reward levels off;   stage 2: all
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core import (
    BadValue,
    Claim,
    History,
    Home,
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
from ..curriculum.select import first_task_index, suiting_tasks
from ..reward.overlap import formed_f1
from .search_r1 import search_r1

GYM = {"hops": (1, 2, 3), "ways": (0.15, 0.0, 0.45, 0.4)}


@method(family="search", paper="2601.14615", catalogue=78, home=Home("fact_graph", 40, GYM))
def search_gym(
    groups: int = 16,
    rollouts: int = 8,
    turns: int = 6,
    curriculum: bool = True,
    facts: int = 2,
    window: int = 8,
    gain: float = 0.02,
    most_steps: int = 30,
    verified: bool = True,
    beta: float = 0.0,
) -> Method:
    """GRPO on verified questions, at first on those that need few facts.

        R = F1(answer, gold) where the form is right, else 0

    Zhang et al. 2026, from descriptions of it; their code (github.com/JIA-Lab-research/SearchGym, on AReaL, with two
    stages of RL) was not at hand. F1 that form gates is a reading, and `facts`, `window`, `gain` and `most_steps` are
    chosen here. Their world has 3,600 entities in a graph whose edges are kept where an engine, asked in plain words,
    finds the document and the document states the edge; here it is the task `fact_graph`, whose questions have the tag
    `verified` by that rule. The first stage asks questions of up to `facts` facts until the mean reward of `window`
    steps is not `gain` above that of the `window` before, or for `most_steps`; the second asks all: longer chains, and
    composed questions only where the task is given `parts` or `joints`. Their two tools, one that finds pages and one
    that opens them, are one search here. curriculum=False: all questions throughout. verified=False: also those that
    the engine leads astray.
    """
    base = search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta).replace(
        select=verified_tasks(verified=verified), reward=(formed_f1(),)
    )
    if not curriculum:
        return base
    easy = replace(
        base.stage,
        name="basic",
        select=verified_tasks(verified=verified, facts=facts),
        until=levelled_off(window=window, gain=gain, most_steps=most_steps),
    )
    return base.override(stages=(easy, *base.stages))


@block
@stateful(int, shared="questions")
def verified_tasks(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: int,
    verified: bool = True,
    facts: int | None = None,
) -> tuple[list[RolloutRequest], int]:
    """The next `n` training tasks that are verified (tag) and need up to `facts` facts (tag difficulty).

    Raises BadValue where of very many none is.
    """
    if finished_rounds:
        return [], state
    tasks, seen = suiting_tasks(source, first_task_index(seed) + state, n, lambda task: _suits(task, verified, facts))
    if len(tasks) == n:
        return [RolloutRequest(task, rollouts) for task in tasks], state + seen
    raise BadValue(
        f"task {source.name}: of {seen} questions only {len(tasks)} are verified and of up to {facts} facts; take"
        " fact_graph with hops that begin lower, or a larger value of facts"
    )


def _suits(task: Task, verified: bool, facts: int | None) -> bool:
    is_short = facts is None or float(task.tags.get("difficulty", 0)) <= facts
    return is_short and (not verified or bool(task.tags.get("verified", True)))


@block
def levelled_off(*, history: History, window: int = 8, gain: float = 0.02, most_steps: int = 30) -> bool:
    """Whether the mean reward of the last `window` steps is not `gain` above that of the `window` before, or
    `most_steps` are over; for the first stage of a run.

    >>> rising, level = [0.1, 0.2, 0.3, 0.4], [0.3, 0.3, 0.3, 0.3]
    >>> [levelled_off(history=History(4, scalars={"reward/mean": r}), window=2) for r in (rising, level, level[:3])]
    [False, True, False]
    """
    rewards = history.scalars.get("reward/mean", [])
    if len(rewards) >= most_steps:
        return True
    recent = rewards[-2 * window :]
    return len(recent) == 2 * window and bool(np.mean(recent[window:]) - np.mean(recent[:window]) < gain)


search_gym.claim = Claim(
    (
        premise("accuracy/hops=3", "mixed", 0.9, relation="<", fails_at=0.95),  # long questions are hard
        mechanism("early:reward/facts", "self", "mixed", by=0.5, relation="<", fails_at=0.4),  # short ones come first
        mechanism("early:reward/mean", "self", "mixed", by=0.1, fails_at=0.9),  # and are answered sooner
        outcome("accuracy/hops=3", "self", "mixed", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "mixed", by=0.03, fails_at=0.98),
        outcome("accuracy", "self", "unverified", by=0.03, fails_at=0.98),
    ),
    arms={
        "mixed": ("search_gym", {"curriculum": False}),
        "unverified": ("search_gym", {"verified": False, "facts": 1}),
    },
    args={"facts": 1},
    regime="search_gym",
    settings={"eval_every": 12},
    idea=("basic", "basic.*", "main.select"),
    because="what is never rewarded wrongly can be built up, from one search to many",
)
