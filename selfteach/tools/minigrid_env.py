"""MiniGrid and BabyAI in words: the mission, and what is seen, by its place relative to the agent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ..core.extras import optional
from ..core.task import Task
from .gym_env import GymEnv

ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
FACING = ("east", "south", "west", "north")
STATES = ("open", "closed", "locked")


class MiniGridEnv(GymEnv):
    """One episode in a world of MiniGrid or BabyAI, seen as the agent sees it: 7 x 7 cells before it."""

    _bot: Any = None
    _last: Any = None
    _advice: str | None = None

    def reset(self, task: Task) -> str:
        """Begin with the task's seed; the mission, then what is seen."""
        text = super().reset(task)
        if hasattr(self.bare, "instrs"):
            bot = optional("minigrid.utils.baby_ai_bot", "minigrid", "task minigrid").BabyAIBot
            try:
                self._bot = bot(self.engine)
            except Exception:  # it knows some missions only
                self._bot = None
        return text

    def step(self, text: str) -> tuple[str, float, bool]:
        """Take the action that a text names."""
        self._last, self._advice = self.read(text), None
        return super().step(text)

    def rules(self) -> str:
        """The mission."""
        return f"{self.bare.mission.strip()}."

    def actions(self) -> Sequence[str]:
        """The words of its actions."""
        return ACTIONS

    def observe(self) -> str:
        """What is seen: facing east. left wall, right free, 3 free ahead. green goal 2 ahead 1 right."""
        view = self.observed["image"]
        constants = optional("minigrid.core.constants", "minigrid", "task minigrid")
        kinds, colors = constants.IDX_TO_OBJECT, constants.IDX_TO_COLOR
        middle, row = view.shape[0] // 2, view.shape[1] - 1
        name = lambda x, y: kinds[int(view[x, y, 0])]  # noqa: E731
        free = 0
        while free < row and name(middle, row - free - 1) in ("empty", "floor", "goal"):
            free += 1
        sides = [
            f"{side} {'free' if (kind := name(middle + at, row)) in ('empty', 'floor') else kind}"
            for side, at in (("left", -1), ("right", 1))
        ]
        seen = []
        for y in range(row, -1, -1):
            for x in range(view.shape[0]):
                kind, color, state = (int(n) for n in view[x, y])
                if (x, y) == (middle, row) or kinds[kind] in ("unseen", "empty", "wall", "floor", "agent"):
                    continue
                door = f"{STATES[state]} " if kinds[kind] == "door" else ""
                colored = "" if kinds[kind] == "lava" else f"{colors[color]} "
                seen.append(f"{door}{colored}{kinds[kind]}{_place(row - y, x - middle)}")
        held = self.bare.carrying
        carried = f" you carry a {held.color} {held.type}." if held is not None else ""
        text = f"facing {FACING[self.bare.agent_dir]}. {', '.join(sides)}, {free} free ahead.{carried}"
        return text + "".join(f" {one}." for one in seen)

    def expert(self) -> str | None:
        """BabyAI's own bot; elsewhere the shortest way to the goal, where no door or object is in it."""
        if self._advice is None:
            if self._bot is not None:
                try:
                    self._advice = ACTIONS[int(self._bot.replan(self._last))]
                except Exception:  # the bot gives up on what it did not foresee
                    self._bot = None
            elif not hasattr(self.bare, "instrs"):
                self._advice = way_to_goal(self.bare)
        return self._advice

    def success(self, rewards: Sequence[float]) -> bool:
        """The mission is done: its last reward is above 0."""
        return bool(rewards) and rewards[-1] > 0


def _place(ahead: int, right: int) -> str:
    side = f" {abs(right)} {'right' if right > 0 else 'left'}" if right else ""
    return (f" {ahead} ahead" if ahead else "") + side


def way_to_goal(world: Any) -> str | None:
    """The first action of a shortest way to a goal over free cells; None where there is none."""
    x, y = (int(n) for n in world.agent_pos)
    start = (x, y, int(world.agent_dir))
    first: dict[tuple[int, int, int], str | None] = {start: None}
    waiting = deque([start])
    while waiting:
        place = waiting.popleft()
        x, y, facing = place
        cell = world.grid.get(x, y)
        if cell is not None and cell.type == "goal":
            return first[place]
        dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[facing]
        ahead = world.grid.get(x + dx, y + dy) if 0 <= x + dx < world.width and 0 <= y + dy < world.height else place
        moves = [("left", (x, y, (facing - 1) % 4)), ("right", (x, y, (facing + 1) % 4))]
        if ahead is None or getattr(ahead, "type", "") in ("goal", "floor"):
            moves.append(("forward", (x + dx, y + dy, facing)))
        for name, to in moves:
            if to not in first:
                first[to] = first[place] or name
                waiting.append(to)
    return None
