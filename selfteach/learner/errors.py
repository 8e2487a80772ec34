"""Errors inside a learner."""

from __future__ import annotations

from ..core.errors import SelfteachError


class AgreedOutOfMemory(RuntimeError):
    """Memory ran out on some rank in what it computed alone: raised on every rank, in step."""


class RankFailed(SelfteachError, RuntimeError):
    """A rank of a sharded learner died, hangs, or failed alone; the run ends and goes on from its checkpoint.

    lost  whether its process is gone or hangs, so that the same step may succeed with new ones
    """

    def __init__(self, text: str, lost: bool = False) -> None:
        super().__init__(text)
        self.lost = lost
