"""Episodes in which the policy tries again."""

from __future__ import annotations

from typing import Any

from ..core import Request, block
from ..core.text import last_between

DOUBT = "There might be an error in the solution above. Correct it, and give the final solution."


def doubted(prompt: str, instruction: str = DOUBT) -> str:
    """What stands between two attempts: the instruction, and the question again."""
    return f"\n{instruction}\n{prompt}"


@block
async def two_attempts(*, request: Request, cast: Any, instruction: str = DOUBT, again: bool = True, stop: tuple[str, ...] = ("</answer>",)) -> str:
    """Answer, be told that there might be an error, and answer again in the same context (Kumar et al. 2024, SCoRe, section 3).

    again: the question is put once more after the instruction, for models that have seen no instructions. Returns the second answer.
    """
    prompt = request.task.prompt
    context = cast.policy.begin(prompt)
    await context.sample(stop=stop)
    if context.talks:
        context.say("user", instruction, span="instruction")
    else:
        context.append(doubted(prompt if again and isinstance(prompt, str) else "", instruction), span="instruction")
    turn = await context.sample(stop=stop)
    context.close()
    return last_between(turn.text, "answer", turn.text.strip())
