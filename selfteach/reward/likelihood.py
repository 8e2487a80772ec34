"""Log-probabilities of given tokens by the engine, for likelihood rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core import BadValue, Episode, RewardContext, RolloutGroup, Trajectory
from ..core.answers import reference_answer
from ..core.tagged_text import pieces_before


class ReferenceLogps(NamedTuple):
    """Log-probabilities f64[n] of a reference answer's n tokens: without reasoning, and after each trajectory's (None:
    it has no opening tag).
    """

    bare: np.ndarray
    after: list[tuple[Episode, Trajectory, np.ndarray | None]]


async def reference_logps(
    reward_context: RewardContext,
    group: RolloutGroup,
    model_role: str = "policy",
    opening: str = "<answer>",
    form: str = " {}",
    bare: str = "",
) -> ReferenceLogps:
    """Log-probabilities of the task's first accepted answer after the reasoning of each learned trajectory of a group.

    The answer replaces the text after the last `opening`, formatted by `form` and tokenised by itself; without
    reasoning the text `bare` is in its place. Raises BadValue for a task without an accepted answer.
    """
    tokenizer = reward_context.tokenizer
    reference = tokenizer.encode(form.format(reference_answer(group.request.task)))
    tag = tokenizer.encode(opening)
    learned = group.learned
    if not learned:
        return ReferenceLogps(np.zeros(len(reference)), [])
    path = reward_context.path(learned[0][1].leaf)
    bare_ids = np.concatenate([path.ids[: path.prompt], tokenizer.encode(bare), tag])
    base = await token_logps(reward_context, learned[0][0], model_role, bare_ids, reference)
    after: list[tuple[Episode, Trajectory, np.ndarray | None]] = []
    for episode, t in learned:
        path = reward_context.path(t.leaf)
        end = _tokens_before(path.ids, path.prompt, opening.encode(), tokenizer)
        context = None if end is None else np.concatenate([path.ids[:end], tag])
        logps = None if context is None else await token_logps(reward_context, episode, model_role, context, reference)
        after.append((episode, t, logps))
    return ReferenceLogps(base, after)


def _tokens_before(ids: np.ndarray, start: int, opening: bytes, tokenizer: Any) -> int | None:
    """How many ids precede the last `opening` that begins after `start`; None where there is none."""
    pieces = tokenizer.token_bytes(ids[start:])
    at = b"".join(pieces).rfind(opening)
    return None if at < 0 else start + pieces_before(pieces, at)


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
