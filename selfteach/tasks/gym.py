"""Environments of Gymnasium and MiniGrid as tasks."""

from __future__ import annotations

from typing import Any

from ..core.errors import BadValue
from ..core.extras import optional
from ..core.registry import task
from ..core.task import TaskSource
from ..tools.gym_env import GymMaker, check_spaces
from ..tools.minigrid_env import MiniGridEnv
from .environment import Env, environment_source
from .options import parse_config


@task
def gym(
    id: str = "FrozenLake-v1",
    config: str = "",
    max_turns: int = 30,
    noise: float = 0.3,
    n_test: int = 100,
    seed: int = 0,
) -> TaskSource:
    """An environment of Gymnasium whose actions and observations are discrete, or text; in words.

    id         FrozenLake-v1, Taxi-v4, CliffWalking-v1, Blackjack-v1, or any that is registered
    config     arguments of its maker, as key=value,key=value or JSON: is_slippery=false,map_name=8x8
    max_turns  turns of an episode, at most
    noise      share of the demonstrated moves that are random; the others are the best by value iteration
    n_test     test episodes
    seed       of every random draw
    """
    task_options = dict(locals())
    maker = GymMaker(id, parse_config("gym", config))
    engine = maker.make()
    check_spaces(engine, id)
    maker.free.append(engine)
    return environment_source("gym", maker, id, task_options, Env, defaults={"max_tokens": 8})


@task
def minigrid(
    id: str = "MiniGrid-Empty-5x5-v0",
    config: str = "",
    max_turns: int = 30,
    noise: float = 0.3,
    n_test: int = 100,
    seed: int = 0,
) -> TaskSource:
    """A world of MiniGrid or BabyAI: its mission and what the agent sees, in words.

    id         MiniGrid-Empty-5x5-v0, MiniGrid-LavaGapS5-v0, BabyAI-GoToRedBallGrey-v0 ...
    config     arguments of its maker, as key=value,key=value or JSON
    max_turns  turns of an episode, at most
    noise      share of the demonstrated moves that are random; the others are those of BabyAI's bot, or the
               shortest way to the goal; all are random where neither knows one
    n_test     test episodes
    seed       of every random draw
    """
    task_options = dict(locals())
    optional("minigrid", "minigrid", "task minigrid")
    maker = GymMaker(id, parse_config("minigrid", config), "minigrid", MiniGridEnv)
    engine: Any = maker.make()
    if not hasattr(engine.unwrapped, "agent_pos"):
        raise BadValue(f"environment {id}: is no world of MiniGrid; take --task gym")
    maker.free.append(engine)
    return environment_source("minigrid", maker, id, task_options, Env, defaults={"max_tokens": 8})
