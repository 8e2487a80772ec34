"""One turn in a world that pays as soon as what it wants was written, and ends there."""

from __future__ import annotations

from ..core import RolloutContext, RolloutRequest, block


@block
async def until_right(*, request: RolloutRequest, rollout: RolloutContext, model_role: str = "policy") -> str:
    """One sampled turn that ends where it contains an accepted answer of the task; the answer is all that was written.

    Whoever writes something else first has seen, by going on, that it was not what is wanted. Left out, as training
    does with any stop, is nothing: the answer's own last token is sampled and learned.
    """
    context = rollout.model_role(model_role).begin(request.task.prompt)
    turn = await context.sample(stop=tuple(f" {answer}" for answer in request.task.answer))
    context.close()
    return turn.text.strip()
