"""How well credit within an episode tells its right steps from its wrong ones.

What is right says the task's judge of steps, or, of turns in an environment, the progress that it noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ..core.batch import Batch
from ..core.blocks import Block
from ..core.ranking import auc
from ..core.tagged_text import step_verdicts
from ..core.tree import RolloutGroup
from ..model.tokenizer import Tokenizer


def step_judges(groups: Iterable[RolloutGroup]) -> dict[str, Block]:
    """Task id -> its judge of steps (`Task.judges["step"]`), of the tasks that have one."""
    tasks = (g.request.task for g in groups)
    return {t.id: t.judges["step"] for t in tasks if "step" in t.judges}


def step_auc(batch: Batch, judges: Mapping[str, Block], tokenizer: Tokenizer) -> float | None:
    """The chance that a right step of an answer has a higher advantage than a wrong one of the same answer.

    A step is a sentence or a line of an answer's learned tokens, its credit the mean advantage of these, its verdict
    that of the task's judge (None: no step). Mean over the answers that have both, equals counting one half: 1/2 where
    all tokens of an answer have one advantage. None where advantages are no finer than answers, or none has both.
    Where the batch has a column `progress`, steps are turns, and right is one of a progress above 0.
    """
    if "adv" not in batch or batch.columns["adv"].unit not in ("token", "step"):
        return None
    if "progress" in batch and batch.columns["progress"].unit == "step":
        return _turn_auc(batch)
    if "task" not in batch or not judges:
        return None
    seq, adv = batch.get("seq"), np.asarray(batch.get("adv"), np.float64)
    task, ids = batch.get("task", "seq"), batch.ids[batch.place]
    found: list[float] = []
    for s in range(batch.size("seq")):
        judge = judges.get(str(task[s]))
        rows = np.flatnonzero(seq == s)
        if judge is None or not len(rows):
            continue
        credit: dict[bool, list[float]] = {True: [], False: []}
        for a, z, verdict in step_verdicts(tokenizer.token_bytes(ids[rows]), judge):
            if verdict is not None:
                credit[bool(verdict)].append(float(adv[rows[a:z]].mean()))
        area = auc(credit[True], credit[False])
        if area is not None:
            found.append(area)
    return float(np.mean(found)) if found else None


def _turn_auc(batch: Batch) -> float | None:
    """`step_auc` of turns, by the column `progress`; NaN where it is not known."""
    step, n = batch.get("step"), batch.size("step")
    credit = np.bincount(step, np.asarray(batch.get("adv"), np.float64), n) / np.maximum(
        np.bincount(step, minlength=n), 1
    )
    progress, seq = batch.get("progress", "step"), batch.get("seq", "step")
    found: list[float] = []
    for s in range(batch.size("seq")):
        of, known = credit[seq == s], progress[seq == s]
        area = auc(of[known > 0], of[known <= 0])
        if area is not None:
            found.append(area)
    return float(np.mean(found)) if found else None
