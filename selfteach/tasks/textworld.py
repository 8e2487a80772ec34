"""TextWorld's generated text adventures as tasks."""

from __future__ import annotations

from ..core.random_keys import key
from ..core.registry import task
from ..core.task import TaskSource
from ..tools.textworld_env import TextWorldEnv, TextWorldMaker, game_file
from .environment import environment_source
from .options import check_at_least


@task
def textworld(
    rooms: int = 2,
    objects: int = 3,
    quest: int = 2,
    games: int = 8,
    test_games: int = 4,
    max_turns: int = 20,
    noise: float = 0.3,
    n_test: int = 100,
    seed: int = 0,
) -> TaskSource:
    """Text adventures that TextWorld makes: rooms, things, and a quest of some commands. No test game is trained on.

    rooms       of a game
    objects     of a game
    quest       commands that its quest takes
    games       games to train on, which are made before the run (seconds each) and cached
    test_games  games of the test
    max_turns   turns of an episode, at most
    noise       share of the demonstrated commands that are random; the others win
    n_test      test episodes, over the test games in turns
    seed        of every random draw
    """
    task_options = dict(locals())
    options = {
        "nb_rooms": check_at_least("textworld", "rooms", rooms, 1),
        "nb_objects": check_at_least("textworld", "objects", objects, 1),
        "quest_length": check_at_least("textworld", "quest", quest, 1),
    }
    wanted = {
        "train": check_at_least("textworld", "games", games, 1),
        "test": check_at_least("textworld", "test_games", test_games, 1),
    }
    made = {
        kind: tuple(game_file(options, key(seed, "textworld", kind, i) % 2**31) for i in range(n))
        for kind, n in wanted.items()
    }
    maker = TextWorldMaker(made["train"], made["test"])
    return environment_source("textworld", maker, "textworld", task_options, TextWorldEnv, {"games": dict(wanted)})
