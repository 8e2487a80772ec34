"""How well numbers that a tree search notes tell right steps from wrong ones, by the task's judge of steps."""

from __future__ import annotations

import statistics

from ..core import RewardContext, RolloutGroup
from ..core.ranking import auc


def sibling_auc(group: RolloutGroup, context: RewardContext, note: str) -> float | None:
    """The chance that a right step has a larger note of this name than a wrong one that begins in the same place.

    Right and wrong are the task's judge of steps (`Task.judges["step"]`). Mean over the places from which both begin,
    equals counting one half; None where there is no such place, or no judge.
    """
    judge, found = group.request.task.judges.get("step"), list[float]()
    if judge is None:
        return None
    for tree in (e.tree for e in group.episodes):
        places: dict[int, dict[bool, list[float]]] = {}
        for node in tree.notes:
            value = tree.number(node, note)
            if value is None:
                continue
            verdict = judge(step=context.tokenizer.decode(tree.id[tree.begin[node] : tree.stop(node)]))
            if verdict is not None:
                places.setdefault(tree.parent[node], {True: [], False: []})[bool(verdict)].append(value)
        found += [area for of in places.values() if (area := auc(of[True], of[False])) is not None]
    return statistics.fmean(found) if found else None
