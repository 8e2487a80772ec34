"""TextArena's games for one player as tasks. Those for two are the task `games`."""

from __future__ import annotations

from ..core.registry import task
from ..core.task import TaskSource
from ..tools.textarena_env import TextArenaEnv, TextArenaMaker
from .environment import environment_source
from .options import parse_config


@task
def textarena(
    id: str = "GuessTheNumber-v0", config: str = "", max_turns: int = 0, n_test: int = 100, seed: int = 0
) -> TaskSource:
    """A game of TextArena for one player, in the engine's own words; there are no demonstrations.

    id         GuessTheNumber-v0, TowerOfHanoi-v0, FrozenLake-v0, Mastermind-v0, LightsOut-v0, 2048-v0 ...
    config     arguments of its maker, as key=value,key=value or JSON
    max_turns  turns of an episode, at most; 0: 30
    n_test     test episodes
    seed       of every random draw
    """
    task_options = dict(locals())
    maker = TextArenaMaker(id, parse_config("textarena", config))
    maker.make()
    return environment_source("textarena", maker, id, {**task_options, "noise": 0.0}, TextArenaEnv)
