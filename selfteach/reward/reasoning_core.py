"""Reasoning Core's generators and scorers, in processes of their own that are killed where one does not end.

What a scorer needs of an item travels with the task, as JSON. One scorer evaluates an answer as code; it gets what is
made of numbers, `n`, `U[n - 1]` and signs alone.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ..core import Score, Task, block
from ..core.errors import BadValue, SelfteachError
from .worker_process import WorkerProcess, score_apart

LONGEST = 20_000  # characters of an answer that is scored
# A polynomial in n and U[n - 1], written out: no power of a power or of a bracket, which may never be computed.
_RECURRENCE = re.compile(r"(?:\d{1,9}(?!\d)|[nU\s\[\](+\-=]|\)(?!\s*\*\*)|\*(?!\*)|\*\*\s*\d\b(?!\s*\*\*))*")
CODE_TASKS = {"sequential_induction": _RECURRENCE}
# A generator that goes through a set must go through it alike in every process.
ENVIRONMENT = {"PYTHONHASHSEED": "0"}


def new_worker() -> WorkerProcess:
    """A process that makes and scores items (`reasoning_core_worker.py`)."""
    return WorkerProcess("reward.reasoning_core_worker", "reasoning-core", ENVIRONMENT)


_scorer = new_worker()


def harmless(name: str, answer: str) -> bool:
    """Whether an answer may be given to the scorer of a task.

    >>> [harmless("sequential_induction", a) for a in ("2*U[n - 1] + n**2", "print(n)", "9**9**9", "9**99")]
    [True, False, False, False]
    """
    form = CODE_TASKS.get(name)
    return len(answer) <= LONGEST and (form is None or (len(answer) < 500 and form.fullmatch(answer) is not None))


@block
def reasoning_core_score(*, answer: Any, task: Task, partial: bool = False, seconds: float = 20.0) -> Score:
    """The score of Reasoning Core's own scorer of the task; 1 or 0 unless partial scores are asked for.

    partial  the scorer's own score, from 0 to 1; else 1 where it is 1, and 0
    seconds  an answer that takes longer has no score

    The tags `dataset` and `entry` say what is scored. An answer on which the scorer raises is wrong. Part: scorer, its
    own score.
    """
    name, text = task.tags["dataset"], "" if answer is None else str(answer).strip()
    request = {"score": name, "answer": text, "entry": task.tags["entry"], "seconds": seconds}
    return score_apart(_scorer, name, text, harmless(name, text), request, partial)


def made_item(worker: WorkerProcess, name: str, level: float, seed: int, seconds: float) -> dict[str, Any]:
    """An item of a task: prompt, answer, entry (JSON of what its scorer needs), gold (the score of the answer).

    Raises SelfteachError where there is none in time, or the generator raises.
    """
    got = worker.ask({"make": name, "level": level, "seed": seed, "seconds": seconds}, seconds)
    if "broken" in got:
        raise SelfteachError(f"{name}: {got['broken']}")
    return got


def names_of(worker: WorkerProcess) -> list[str]:
    """The tasks of the package's roster."""
    found = worker.ask({"names": True, "seconds": 60.0}, 60.0)
    if "broken" in found:
        raise BadValue(str(found["broken"]))
    return list(json.loads(found["names"]))
