"""One turn in a world that pays as soon as what it wants was written, and ends there."""

from __future__ import annotations

from ..core import RolloutContext, RolloutRequest, block


@block
async def until_right(*, request: RolloutRequest, rollout: RolloutContext, model_role: str = "policy") -> str:
    """One sampled turn that ends where it contains an accepted answer of the task; the answer is all that was written.

    So a policy that goes on after it wrote something knows that this was not what is wanted.
    """
    context = rollout.model_role(model_role).begin(request.task.prompt)
    turn = await context.sample(stop=tuple(f" {answer}" for answer in request.task.answer))
    context.close()
    return turn.text.strip()
