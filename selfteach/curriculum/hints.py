"""Hints made from a task's worked solution."""

from __future__ import annotations

import re

from ..core import Task
from ..core.answers import gold_answers


def guidance(task: Task, max_steps: int | None = None) -> str:
    """The leading steps of a task's solution that do not give the answer away, as one line; "" where there are none.

    Of the tag `steps` the last two (the answer, and the step that computes it) are never shown, nor a step that
    contains a gold answer as whole words, nor what follows such a step.

    Args: max_steps: at most so many steps.
    """
    steps = [re.sub(r"<[^<>]*>", "", s).strip() for s in task.tags.get("steps", ())[:-2]]
    golds = gold_answers(task)
    shown: list[str] = []
    for step in steps[:max_steps]:
        if any(re.search(rf"(?<!\w){re.escape(gold.strip())}(?!\w)", step) for gold in golds):
            break
        shown.append(step)
    return f" {' '.join(shown)}\n" if shown else ""
