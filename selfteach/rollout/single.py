"""Episodes of one turn, and episodes that read what stands written."""

from __future__ import annotations

import re
from typing import Any

from ..core import Request, block
from ..core.text import last_between


@block
async def single(*, request: Request, cast: Any, member: str = "policy", prefix: str = "", stop: tuple[str, ...] = ("</answer>",)) -> str:
    """One turn, begun with `prefix`. The answer stands in the last <answer>...</answer>; where there is none, it is the whole turn.

    A request's help may hold a `hint`: it follows the prompt as the span `hint`, and may begin the answer.
    """
    context = cast.member(member).begin(request.task.prompt)
    hint = request.help.get("hint", "")
    context.append(hint, span="hint")
    context.append(prefix)
    turn = await context.sample(stop=stop)
    context.close()
    return last_between(hint + prefix + turn.text, "answer", turn.text.strip())


@block
async def plain(*, request: Request, cast: Any, member: str = "policy") -> str:
    """One turn in plain English. The answer is what its first sentence comes to: `The capital of Peru is Lima.` answers `Lima`."""
    context = cast.member(member).begin(request.task.prompt)
    turn = await context.sample()
    context.close()
    return conclusion(turn.text)


def conclusion(text: str) -> str:
    """What the first line of a text says that something is; the whole line where it says nothing of the kind.

    >>> conclusion("The capital of Peru is Lima.")
    'Lima'
    """
    line = text.strip().split("\n", 1)[0]
    return re.split(r"\b(?:is|are)\b:?|:", line)[-1].split(", ", 1)[0].strip().rstrip(".!")


@block
async def read(*, request: Request, cast: Any, member: str = "policy", learn: str = "main") -> str:
    """A demonstration: the prompt, then the task's own completion and the end of the text, as tokens chosen elsewhere, for the stream `learn`."""
    context = cast.member(member).begin(request.task.prompt)
    context.adopt(request.task.data[0])
    context.finish()
    context.close(learn=learn)
    return request.task.data[0]
