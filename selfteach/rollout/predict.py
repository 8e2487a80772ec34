"""Programs that say beforehand how a task will go."""

from __future__ import annotations

import math
from typing import Any

from ..core import Request, block


@block
async def predict(*, request: Request, cast: Any, member: str = "critic") -> float:
    """The answer is sigmoid(V), V the value head's output at the prompt's last token. Nothing is sampled, and nothing learned from it."""
    context = cast.member(member).begin(request.task.prompt)
    found = await context.score([0], want=("value",))  # the value before a token does not depend on the token
    context.close(learn=None)
    return 1.0 / (1.0 + math.exp(-float(found["value"][0])))
