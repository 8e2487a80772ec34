"""Questions on both sides of what a model can do in some way: what a probe solved, and questions drawn by that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..core import Example, RolloutGroup, RolloutRequest, TaskSource, block, random_keys, stateful
from .select import pool_tasks


@block
@stateful(lambda: {"solved": {}, "asked": 0, "sides": {}}, shared="boundary")
def remember_solved(*, groups: Sequence[RolloutGroup], state: dict[str, Any]) -> tuple[list[Example], dict[str, Any]]:
    """A composer without examples: it stores how often each task was solved, for `along_boundary`."""
    solved = dict(state["solved"])
    for group in groups:
        known = [s.value for s in group.scores.get("reward", {}).values() if s.value is not None]
        solved[group.request.task.id] = solved.get(group.request.task.id, 0) + sum(v >= 1 for v in known)
    return [], {**state, "solved": solved}


@block
@stateful(lambda: {"solved": {}, "asked": 0, "sides": {}}, shared="boundary")
def along_boundary(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    state: dict[str, Any],
    questions: int = 192,
    mix: Literal["even", "easy", "hard"] = "even",
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """Questions that were ever solved without the engine and such that never were, in turns; each side cycled through,
    in another order each time.

    A side without questions is left out. mix: easy or hard, the one side alone, where it has any.
    """
    if finished_rounds:
        return [], state
    sides: dict[str, list[int]] = state["sides"] or {"easy": [], "hard": []}
    if not state["sides"]:
        for number, task in enumerate(pool_tasks(source, seed, 0, questions, questions)):
            sides["easy" if state["solved"].get(task.id, 0) else "hard"].append(number)
    wanted = [side for side in ("easy", "hard") if mix in ("even", side) and sides[side]]
    wanted = wanted or [side for side in sides if sides[side]]
    out = list[RolloutRequest]()
    for i in range(state["asked"], state["asked"] + n):
        turn, place = divmod(i, len(wanted))
        side = wanted[place]
        lap, at = divmod(turn, len(sides[side]))
        order = random_keys.generator(seed, "boundary", side, lap).permutation(len(sides[side]))
        (task,) = pool_tasks(source, seed, sides[side][int(order[at])], 1, questions)
        out.append(RolloutRequest(task, rollouts))
    return out, {**state, "asked": state["asked"] + n, "sides": sides}
