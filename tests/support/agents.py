"""A search agent that says what it is told to, and what a reward makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from selfteach.core import Block, RolloutGroup, RolloutRequest, Score, Task
from selfteach.core.scoring import score
from selfteach.loop.episode import play
from selfteach.loop.step_context import StepContext
from selfteach.model.tokenizer import Tokenizer
from support.episodes import scripted_context

ULM = "the home of Ann is Ulm."
ANN = Task("t", "question: what is the home of Ann?\n", ("Ulm",))


def played(
    program: Block,
    replies: Sequence[str] | Callable[[str, int], str],
    tokenizer: Tokenizer,
    engine: Callable[[str], Any] = lambda query: ULM,
    request: RolloutRequest | None = None,
    tool: str = "search",
    **more: Any,
) -> tuple[StepContext, RolloutGroup]:
    """The context and the one group of an episode in which the policy says these replies, turn by turn; of several
    episodes, which call tools in threads, give a function of the text so far. tool: the engine's name.
    """
    said = replies if callable(replies) else list(replies)
    context = scripted_context(program, said, tokenizer, tools={tool: engine}, **more)
    return context, asyncio.run(play(context, [request or RolloutRequest(ANN, key="t")]))[0]


def scored(
    reward: Block, program: Block, replies: Sequence[str], tokenizer: Tokenizer, task: Task = ANN, **more: Any
) -> Score:
    """The score of that episode."""
    context, group = played(program, replies, tokenizer, request=RolloutRequest(task, key="t"), **more)
    found = asyncio.run(score(reward, [group], context))["reward"]
    (only,) = found.values()
    assert only.error is None, only.error
    return only
