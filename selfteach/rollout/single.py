"""Episodes of one turn, and episodes that read what stands written."""

from __future__ import annotations

from typing import Any

from ..core import Request, block
from ..core.text import last_between


@block
async def single(*, request: Request, cast: Any, member: str = "policy", prefix: str = "", stop: tuple[str, ...] = ("</answer>",)) -> str:
    """One turn, begun with `prefix`. The answer stands in the last <answer>...</answer>; where there is none, it is the whole turn."""
    context = cast.member(member).begin(request.task.prompt)
    context.append(prefix)
    turn = await context.sample(stop=stop)
    context.close()
    return last_between(prefix + turn.text, "answer", turn.text.strip())


@block
async def read(*, request: Request, cast: Any, member: str = "policy") -> str:
    """A demonstration: the prompt, then the task's own completion and the end of the text, as tokens chosen elsewhere."""
    context = cast.member(member).begin(request.task.prompt)
    context.adopt(request.task.data[0])
    context.finish()
    context.close()
    return request.task.data[0]
