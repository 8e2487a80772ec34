"""Select blocks: endless sources of tasks, a call with all that may be asked for, and what comes back of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from selfteach.core import History, RolloutGroup, RolloutRequest, Task, TaskSource
from support.episodes import single_turn_group


class Metrics(dict[str, float]):
    """What a select block logs."""

    def __call__(self, **values: float) -> None:
        self.update(values)


def source(
    steps: Sequence[str] = ("<think> 1 + 1 = 2.", " 2 + 1 = 3.", " 3 + 4 = 7.", "</think><answer> 7</answer>"),
) -> TaskSource:
    """Endless tasks of three difficulties in turn."""

    def make(i: int) -> Task:
        return Task(
            f"t{i}", f"q{i}?", ("7",), tags={"difficulty": i % 3, "steps": tuple(steps), "solution": "".join(steps)}
        )

    return TaskSource("made", make, ())


def asked(
    part: Any,
    finished_rounds: list[list[RolloutGroup]],
    state: Any,
    where: TaskSource | None = None,
    n: int = 2,
    rollouts: int = 4,
    **more: Any,
) -> Any:
    """(requests, state, told) of one call of a select."""
    ear = Metrics()
    given: dict[str, Any] = {
        "n": n,
        "rollouts": rollouts,
        "finished_rounds": finished_rounds,
        "source": where or source(),
        "seed": 0,
        "state": state,
        "log_metrics": ear,
    }
    given |= {"history": History(), "step": 0, **more}
    requests, state = part(**{k: v for k, v in given.items() if k in part.needs})
    return requests, state, ear


def answered(
    request: RolloutRequest, rewards: Sequence[float | None], key: str | None = None, answer: Any = None
) -> RolloutGroup:
    """What comes back of a request."""
    group = single_turn_group(
        [(5 + i,) for i in range(len(rewards))], rewards, key=key or request.key or request.task.id
    )
    for episode in group.episodes:
        episode.answer = answer
    return group._replace(request=replace(request, key=group.key))


STYLED = (
    ("terse", ""),
    ("verbose", "arithmetic"),
    ("verbose", ""),
    ("terse", ""),
    ("verbose", ""),
    ("terse", "arithmetic"),
)


def styled_demonstrations(styles: bool = True, slips: bool = True) -> TaskSource:
    """Demonstrations that go round STYLED, for ever."""

    def demo(i: int) -> Task:
        style, slip = STYLED[i % len(STYLED)]
        tags = ({"style": style} if styles else {}) | ({"slip": slip} if slips else {})
        return Task(f"demo/{i}", "q", "a", ("text",), tags)

    return TaskSource("shown", lambda i: Task(f"train/{i}", "q"), (), demo)


def demonstration_numbers(found: Any) -> list[int]:
    """The numbers of the demonstrations among some requests."""
    return [int(r.task.id.split("/")[1]) for r in found if r.task.id.startswith("demo")]
