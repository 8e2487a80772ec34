"""What a value model says of a text that is being sampled."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

from ..core import RolloutContext, RolloutRequest

Valuation = Callable[[Any], Awaitable[float]]  # the value of a context


def values_by(request: RolloutRequest, rollout: RolloutContext, value_model: str) -> Valuation:
    """The value of a context by a model role: the sigmoid of its scalar head after the last token, 0 for no answer."""
    reader = rollout.model_role(value_model).begin(request.task.prompt)
    prompt = len(reader.ids)

    async def value_of(context: Any) -> float:
        ids = context.ids[prompt:]
        if not len(ids):
            return 0.0
        scalar = (await reader.score(ids, want=("scalar_after",)))["scalar_after"][-1]
        return 1 / (1 + math.exp(-float(scalar)))

    return value_of
