"""TextWorld's generated text adventures: games are made once, by their options, and cached."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.cache import cache_folder
from ..core.env import Env
from ..core.errors import BadValue, describe
from ..core.extras import optional
from ..core.task import Task


@dataclass(frozen=True)
class TextWorldMaker:
    """Plays games that are made.

    train, test  files of the games
    """

    train: tuple[Path, ...]
    test: tuple[Path, ...]

    def __call__(self) -> TextWorldEnv:
        """A new episode."""
        return TextWorldEnv(self)

    def file(self, task: Task) -> Path:
        """The game of a task."""
        games = self.test if task.id.startswith("test/") else self.train
        return games[int(task.tags["index"]) % len(games)]


def game_file(options: Mapping[str, int], seed: int) -> Path:
    """The file of a game, made now or read from the cache. Raises BadValue where the generator refuses the options."""
    textworld = optional("textworld", "textworld", "task textworld")
    version = optional("importlib.metadata", "textworld", "task textworld").version("textworld")
    words = json.dumps([dict(options), seed, version], sort_keys=True)
    file = cache_folder("textworld") / f"{hashlib.blake2b(words.encode(), digest_size=10).hexdigest()}.z8"
    if file.is_file() and file.with_suffix(".json").is_file():
        return file
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        wanted = textworld.GameOptions()
        wanted.seeds, wanted.path = seed, str(Path(folder) / file.name)
        for name, value in options.items():
            setattr(wanted, name, value)
        try:
            textworld.generator.compile_game(textworld.generator.make_game(wanted), wanted)
        except Exception as error:
            raise BadValue(f"task textworld: no game with {dict(options)} ({describe(error, 200)})") from None
        for suffix in (".json", ".z8"):
            os.replace(Path(folder) / f"{file.stem}{suffix}", file.with_suffix(suffix))
    return file


class TextWorldEnv(Env):
    """One episode of a text adventure. A turn earns the points by which the score rises."""

    max_tokens = 24

    def __init__(self, maker: TextWorldMaker) -> None:
        self.maker = maker
        self.game: Any = None
        self.state: Any = None
        self.score = 0.0

    def reset(self, task: Task) -> str:
        """Begin the task's game: its objective, then the room."""
        textworld = optional("textworld", "textworld", "task textworld")
        names = ("won", "lost", "admissible_commands", "policy_commands", "objective", "description")
        self.game = textworld.start(str(self.maker.file(task)), textworld.EnvInfos(**dict.fromkeys(names, True)))
        self.state = self.game.reset()
        return f"{self.state.objective}\n{words_of(self.state.description)}"

    def step(self, text: str) -> tuple[str, float, bool]:
        """Carry out a command."""
        self.state, score, done = self.game.step(text)
        reward, self.score = float(score) - self.score, float(score)
        return words_of(self.state.feedback), reward, bool(done)

    def close(self) -> None:
        """End the game's interpreter."""
        self.game.close()

    def actions(self) -> Sequence[str]:
        """The commands that the game admits now."""
        return list(self.state.admissible_commands)

    def expert(self) -> str | None:
        """The first command of a winning policy."""
        return next(iter(self.state.policy_commands or ()), None)

    def success(self, rewards: Sequence[float]) -> bool:
        """The game is won."""
        return bool(self.state.won)


def words_of(text: str) -> str:
    r"""What a game says, without its prompt, status line and empty lines.

    >>> words_of("You take the key.\n\n\n> -= Attic =-0/2")
    'You take the key.'
    """
    text = text.rpartition("\n>")[0] or text
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())
