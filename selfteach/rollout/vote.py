"""Many samples, one answer: what most of them say, each with a vote or with what the policy itself thinks of it."""

from __future__ import annotations

import asyncio
from typing import Any

from ..core import Request, block
from ..core.text import last_between
from ..core.votes import canonical, majority


@block
async def sampled_vote(
    *,
    request: Request,
    cast: Any,
    k: int = 8,
    weighted: bool = False,
    token: int | None = None,
    beta: float = 0.1,
    base: float = -20.0,
    member: str = "policy",
    stop: tuple[str, ...] = ("</answer>",),
) -> str | None:
    """Sample `k` answers and give the most frequent one; weighted: the one with the most of sum clip(s, 0, 1), s the policy's own verdict.

        s = beta (log pi(z | x, y) - base)      z a reserved token, read one position after the end (LaSeR, 2510.14943, section 3.4)

    A sample that did not end by itself weighs 0. The first sample of the winner is the trajectory that is judged; the others are kept.
    """
    trunk = cast.member(member).begin(request.task.prompt)
    contexts = [trunk.fork() for _ in range(k)]
    turns = await asyncio.gather(*(c.sample(stop=stop) for c in contexts))
    answers = [last_between(t.text, "answer", t.text.strip()) for t in turns]
    weights = [1.0] * k
    if weighted:
        reserved = cast.spare if token is None else token
        levels = await asyncio.gather(*(c.score([reserved], want=("raw_logp",)) for c in contexts))
        own = [beta * (float(level["raw_logp"][0]) - base) for level in levels]
        weights = [min(max(s, 0.0), 1.0) if t.status == "stop" else 0.0 for s, t in zip(own, turns, strict=True)]
    best, _ = majority(answers, weights)
    winner = next((i for i, a in enumerate(answers) if canonical(a) == best), 0)
    for i, context in enumerate(contexts):
        context.close(learn="main" if i == winner else None)
    return answers[winner]
