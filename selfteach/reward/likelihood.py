"""Log-probabilities of given tokens by the engine, for likelihood rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core import BadValue, Episode, RewardContext


async def token_logps(
    reward_context: RewardContext,
    episode: Episode,
    model_role: str,
    context: np.ndarray,
    tokens: Sequence[int] | np.ndarray,
) -> np.ndarray:
    """f64[n]: log-probabilities of n tokens after a context under a model, at temperature 1.

    The tokens are counted in the episode's cost as `scored`. Raises BadValue in a stage without an engine.
    """
    episode.cost["scored"] = episode.cost.get("scored", 0) + len(tokens)
    if reward_context.engine is None:
        raise BadValue(
            "a likelihood reward needs an engine, and this stage only reads data; use it in a stage that samples"
        )
    scores = await reward_context.engine.score(
        model_role, np.asarray(context, np.int32), np.asarray(tokens, np.int32), ("raw_logp",)
    )
    return np.asarray(scores["raw_logp"], np.float64)
