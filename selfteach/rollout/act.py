"""The program that plays an environment: observe, say something, observe again."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ..core import ModelContext, RolloutContext, RolloutRequest, SelfteachError, block
from ..core.tagged_text import last_between
from .play import append_message, first_prompt


@block
async def act(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    tool: str = "environment",
    stop: tuple[str, ...] = ("\n",),
    max_turns: int = 30,
    whole_turn: bool = False,
) -> str:
    """Play the environment of a task until it is done, `max_turns` are played, or a limit is reached.

    Observations are messages of the user in a conversation, otherwise text; they are not learned. A step gets what the
    turn has in its last <answer>...</answer>, else the whole turn (with `whole_turn` always). stop: strings that end a
    turn outside a conversation.

    Notes: `turn_reward` and what the environment notes (`Env.notes`) at each turn; `episode_return` (the sum of the
    rewards), `success` (the environment's verdict; 0 where it was not done) and `turns` at the end. Returns success or
    failure.
    """
    play = rollout.tool(tool)
    name = str(request.task.tags.get("environment", tool))
    episode, observation = await _named(name, "reset", play(request.task))
    context: ModelContext = rollout.policy.begin(first_prompt(request, observation))
    stops = () if context.is_conversation else stop
    rewards, done = list[float](), False
    while not done and len(rewards) < max_turns:
        if rewards:
            append_message(request, context, observation)
        turn = await context.sample(stop=stops)
        if turn.status == "limit":
            break
        text = turn.text if whole_turn else last_between(turn.text, "answer", turn.text)
        observation, reward, done, notes = await _named(name, "step", play((episode, (text or "").strip())))
        if not turn.text.endswith("\n") and not context.is_conversation:
            observation = "\n" + observation
        context.note(**notes, turn_reward=reward)
        rewards.append(reward)
    success = await _named(name, "close", play((episode, None)))
    context.note(episode_return=float(sum(rewards)), success=float(success), turns=len(rewards))
    context.close()
    return "success" if success else "failure"


async def _named(name: str, what: str, call: Awaitable[Any]) -> Any:
    """A call of the environment; where it takes too long or exits, the error names it."""
    try:
        return await call
    except SelfteachError as error:
        if str(error).startswith(f"environment {name}:"):
            raise
        raise SelfteachError(f"environment {name}: {what}: {error}") from None
