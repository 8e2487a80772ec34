"""Programs in which a member with a scalar head reads what another said: a reward model at work, and its demonstrations."""

from __future__ import annotations

import math
from typing import Any

from ..core import Request, Task, block
from ..core.text import last_between

REFERENCE = "reference"  # the span of the reference answer, which ends what a reward model reads


def told(task: Task) -> str:
    """The reference answer, as a reward model is told it after an answer. It ends with the number itself, where equal tokens are seen at once."""
    return f"\n {task.answer[0] if isinstance(task.answer, tuple | list) else task.answer}"


@block
async def appraise(*, request: Request, cast: Any, member: str = "rm") -> float:
    """A reward model reads the task, the answer that the request's help points to (`output`) in its own tokens, and the reference answer.

    Its text ends with the note `worth`: sigmoid(what the scalar head says after the last token).
    """
    context = cast.member(member).begin(request.task.prompt)
    context.append(cast.said(request.help["output"]))
    found = await context.score(told(request.task), want=("scalar_after",))
    context.append(told(request.task), span=REFERENCE)
    worth = 1 / (1 + math.exp(-max(min(float(found["scalar_after"][-1]), 50.0), -50.0)))
    context.note(worth=worth)
    context.close(learn=None)
    return worth


@block
async def read_for_appraisal(*, request: Request, cast: Any, member: str = "rm") -> str:
    """A demonstration, and its like with the other verdict, as a reward model reads them; both noted with `label` and learned by `member`.

    Beside a wrong demonstration stands the task's solution (the tag); beside a right one itself under a reference that is off by one or two.
    """
    task, said = request.task, request.task.data[0]
    gold, answer = told(task).strip(), last_between(request.task.data[0], "answer", "")
    texts = [(said, told(task), float(answer == gold))]
    if answer != gold and "solution" in task.tags:
        texts.append((task.tags["solution"], told(task), 1.0))
    elif answer == gold and gold.isdigit():
        off = int(cast.random("reference").choice([-2, -1, 1, 2]))
        texts.append((said, f"\n {abs(int(gold) + off) if int(gold) + off != -int(gold) else int(gold) + 1}", 0.0))
    for text, reference, label in texts:
        context = cast.member(member).begin(task.prompt)
        context.append(text)
        context.adopt(reference, span=REFERENCE)
        context.note(label=label)
        context.close(learn=member)
    return answer
