"""Environments that note of every step whether it could be carried out, was said before, and led on."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.env import Env


class NotedEnv(Env):
    """An environment with the notes executable, repeated and progress (`Env.notes`).

    `reset` calls `begin`, and `step` calls `note`. said: the actions of the episode so far.
    """

    def begin(self) -> None:
        """Forget the last episode."""
        self.said = list[str]()
        self.last: dict[str, float] = {}

    def note(self, action: str, executable: bool, progress: int) -> None:
        """Note a step, whose action is then one that was said."""
        self.last = {
            "executable": float(executable),
            "repeated": float(action in self.said),
            "progress": float(progress),
        }
        self.said.append(action)

    def notes(self) -> Mapping[str, float]:
        """Of the last step: executable, repeated (said before), progress (by how much the goal came nearer)."""
        return self.last
