"""Several samples of each turn, whatever program plays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..core import ModelContext, Sampling, Turn


class Branching:
    """A rollout, or a model or context of it, whose turns are sampled several times; all else is what it wraps."""

    def __init__(self, inner: Any, candidates: int, choose: Any) -> None:
        self.inner, self.candidates, self.choose, self.turns = inner, candidates, choose, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def policy(self) -> Branching:
        """The policy, whose contexts branch."""
        return Branching(self.inner.policy, self.candidates, self.choose)

    def model_role(self, name: str) -> Any:
        """A model by name; the policy's contexts branch."""
        return self.policy if name == "policy" else self.inner.model_role(name)

    def begin(self, prompt: Any, tools: Sequence[Any] = ()) -> Branching:
        """A new context that branches."""
        return Branching(self.inner.begin(prompt, tools), self.candidates, self.choose)

    async def sample(self, sampling: Sampling | None = None, **change: Any) -> Turn:
        """The first of several samples of a turn, after a pair of them is noted."""
        context: ModelContext = self.inner
        before = context.fork()
        others = [context.fork() for _ in range(self.candidates - 1)]
        self.turns += 1
        found = await asyncio.gather(*(c.sample(sampling, **change) for c in (context, *others)))
        # At a limit of the episode turns are empty.
        forks = [c for c, turn in zip((context, *others), found, strict=True) if turn.status != "limit"]
        if len(forks) > 1:
            await self.choose(before, self.turns, forks)
        return found[0]
