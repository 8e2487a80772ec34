"""Episodes that make a question from an answer, and that answer from what lies before them."""

from __future__ import annotations

import re
from typing import Any

from ..core import Request, block
from ..core.text import between, last_between
from .search import inform


@block
async def propose(*, request: Request, cast: Any, answerer: str = "search", turns: int = 3, temperature: float = 0.8) -> dict[str, Any]:
    """Search backwards from an answer and end with <question>...</question>; learned as the stream `propose`, in the role proposer.

    Returns {"question": text or None, "queries": [...], "evidence": [what was found, ...]}. (Lu et al. 2025, SSP, 2510.18821, section 3.1)
    """
    context, said = cast.policy.begin(request.task.prompt), dict[str, Any](question=None, queries=[], evidence=[])
    for n in range(turns + 1):
        turn = await context.sample(stop=("</search>", "</question>") if n < turns else ("</question>",), temperature=temperature)
        query, said["question"] = turn.between("search"), turn.between("question")
        if said["question"] is not None or query is None or turn.status == "limit" or n == turns:
            break
        at = context.at
        await inform(cast, context, turn, answerer)
        said["queries"].append(query)
        said["evidence"] += between(cast.text(context.at)[len(cast.text(at)) :], "information")
    context.close(learn="propose", role="proposer")
    return said


@block
async def shown(*, request: Request, cast: Any) -> str:
    """A demonstration as `read`, in which what stands between <information> tags was found, not said: it is context, and teaches nothing."""
    context = cast.policy.begin(request.task.prompt)
    for piece in re.split(r"(<information>.*?</information>)", request.task.data[0]):
        if piece.startswith("<information>"):
            context.append(piece, span="information")
        else:
            context.adopt(piece)
    context.finish()
    context.close()
    return request.task.data[0]


@block
async def from_evidence(*, request: Request, cast: Any, prefix: str = "<think>the", longest: int = 48) -> str | None:
    """One short turn of at most `longest` tokens, begun with `prefix`, that answers from the prompt alone, with no search; taught to nobody."""
    context = cast.policy.begin(request.task.prompt)
    context.append(prefix)
    turn = await context.sample(stop=("</answer>",), max_tokens=longest)
    context.close(learn=None, role="checker")
    return last_between(prefix + turn.text, "answer", None)
