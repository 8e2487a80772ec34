"""Which tasks are asked, by what a value model says beforehand of how they will go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core import BadValue, Group, History, Request, Source, block, remembers
from .arms import difficulty
from .select import start


@block
@remembers(lambda: {"next": 0, "predicted": {}})
def nearest_predicted(
    *,
    n: int,
    rollouts: int,
    back: list[list[Group]],
    source: Source,
    history: History,
    seed: int,
    tell: Callable[..., None],
    state: dict[str, Any],
    candidates: int = 4,
    target: float = 0.5,
    program: str = "predict",
) -> tuple[list[Request], dict[str, Any]]:
    """Of candidates * n fresh tasks the `n` whose predicted success is nearest `target`: one round asks for predictions, the next for answers.

    Gao et al. 2025 (2510.01135), algorithm 1. The program `predict` answers with a number between 0 and 1; ties go to the earlier task.
    Tells the mean prediction of the chosen, how far it was off the mean reward in the step before, and the mean difficulty.
    """
    if not back:
        first = start(seed) + state["next"]
        tasks = [source.train(first + i) for i in range(candidates * n)]
        return [Request(t, 1, program=program, key=f"{program}/{t.id}") for t in tasks], {**state, "next": state["next"] + len(tasks)}
    if len(back) > 1:
        return [], state
    said = [(g.episodes[0].answer, g.request.task) for g in back[0]]
    silent = next((g for g in back[0] if not isinstance(g.episodes[0].answer, int | float)), None)
    if silent is not None:
        raise BadValue(f"select: program {program!r} gave no number for task {silent.request.task.id}: {silent.episodes[0].why or 'no error'}")
    chosen = sorted(range(len(said)), key=lambda i: abs(said[i][0] - target))[:n]
    tasks = [said[i][1] for i in sorted(chosen)]
    off = [abs(p - history.tasks[t]["reward"]) for t, p in state["predicted"].items() if "reward" in history.tasks.get(t, {})]
    predicted = {said[i][1].id: float(said[i][0]) for i in chosen}
    tell(predicted=sum(predicted.values()) / len(predicted), **({"off": sum(off) / len(off)} if off else {}), **difficulty(tasks))
    return [Request(t, rollouts) for t in tasks], {**state, "predicted": predicted}
