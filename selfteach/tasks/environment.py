"""Environments as tasks: a user's own class, and what every environment's task is made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Any

from ..core.blocks import signature
from ..core.env import Env, env_class
from ..core.errors import BadValue, SelfteachError, unknown
from ..core.random_keys import generator, key
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..reward.payoff import episode_return
from ..rollout.act import act
from ..tools.environment import EnvEpisode, probe
from ..tools.environment import environment as environment_tool
from .moves import Move, demonstrated
from .options import check_at_least, check_share, parse_config

TOKENIZER_EPISODES = 200  # that the tokenizer sees
MOST_TURNS = 60  # of an episode: its limits are 64 turns and 64 calls of tools


@dataclass(frozen=True, eq=False)
class EnvTasks:
    """Episodes of an environment as tasks, and single moves of played ones as demonstrations."""

    make: Callable[[], Env]
    name: str
    noise: float = 0.3
    n_test: int = 100
    seed: int = 0
    max_turns: int = 30
    tags: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def task(self, kind: str, i: int) -> Task:
        """The task of an episode; tags: environment, category (the same), seed (even in training, odd in the test)."""
        seed = key(self.seed, "environment", kind, i) % 2**31 // 2 * 2 + (kind == "test")
        tags = {**self.tags, "environment": self.name, "category": self.name, "seed": seed, "index": i}
        return Task(f"{kind}/{i}", f"play {self.name}.\n", ("success",), tags=tags)

    def train(self, i: int) -> Task:
        """The i-th training episode."""
        return self.task("train", i)

    @cached_property
    def test(self) -> tuple[Task, ...]:
        """The test episodes."""
        return tuple(self.task("test", i) for i in range(self.n_test))

    @cached_property
    def played(self) -> Callable[[int], tuple[Move, ...]]:
        """The moves of the n-th demonstrated episode."""
        return lru_cache(maxsize=4096)(self._play)

    def _play(self, n: int) -> tuple[Move, ...]:
        draw, episode = generator(self.seed, "play", n), EnvEpisode(self.make, self.name)
        text, moves = episode.reset(self.task("demo", n)), list[Move]()
        while not episode.done and len(moves) < self.max_turns:
            options = list(episode._call("actions", episode.env.actions))
            expert = episode._call("expert", episode.env.expert)
            is_random = expert is None or (bool(options) and draw.random() < self.noise)
            if is_random and not options:
                break
            said = str(options[int(draw.integers(len(options)))] if is_random else expert)
            moves.append(Move(text, said + "\n", is_random))
            text += said + "\n" + episode.step(said).observation
        episode.finish()
        return tuple(moves)

    def demo(self, i: int) -> Task:
        """The i-th demonstration: one move of an episode, after all that was observed and said before."""
        return demonstrated(partial(self.task, "demo"), self.played, self.seed, i)

    def words(self) -> Iterator[str]:
        """Text for the tokenizer: small numbers and some episodes."""
        yield " ".join(map(str, range(100)))
        for n in range(TOKENIZER_EPISODES):
            moves = self.played(n)
            if not moves:
                yield EnvEpisode(self.make, self.name).reset(self.task("demo", n))
            else:
                yield moves[-1].before + moves[-1].said

    @cached_property
    def has_demos(self) -> bool:
        """Whether demonstrations can be made: the environment lists actions, or has an expert."""
        return bool(self.played(0))


def environment_source(
    task_name: str,
    make: Callable[[], Env],
    name: str,
    task_options: Mapping[str, Any],
    env: type[Env] | Env = Env,
    about: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    files: tuple[str, ...] = (),
) -> TaskSource:
    """The source of an environment's episodes: tried once, played by `act`, judged by `episode_return`.

    task_options  those of the task's function; n_test, noise, seed and max_turns are read here
    env           what has max_turns, max_tokens, stop and in_thread

    Raises BadValue for an option out of range, and for an environment that fails in its first step.
    """
    check_at_least(task_name, "n_test", task_options["n_test"], 1)
    max_turns = task_options["max_turns"] or min(env.max_turns, MOST_TURNS)
    if check_at_least(task_name, "max_turns", max_turns, 1) > MOST_TURNS:
        raise BadValue(f"task {task_name}: max_turns must be at most {MOST_TURNS}, not {max_turns}")
    noise = check_share(task_name, "noise", task_options["noise"])
    tasks = EnvTasks(make, name, noise, task_options["n_test"], task_options["seed"], max_turns)
    probe(make, name, tasks.train(0))
    try:
        has_demos = tasks.has_demos
    except SelfteachError as error:
        raise BadValue(str(error)) from None
    return TaskSource(
        name=task_name,
        train=tasks.train,
        test=tasks.test,
        demos=tasks.demo if has_demos else None,
        words=tasks.words,
        tools={"environment": environment_tool(make=make, name=name, in_thread=env.in_thread)},
        program=act(stop=tuple(env.stop), max_turns=max_turns, **({"whole_turn": True} if env.whole_turn else {})),
        defaults={
            "judge": episode_return(),
            "max_tokens": env.max_tokens,
            "lr": 3e-4,
            "warm_steps": 300,
            "warm_batch": 16,
            **(defaults or {}),
        },
        task_options=task_options,
        about={"environment": name, "turns": max_turns, "test episodes": len(tasks.test), **(about or {})},
        files=files,
    )


@task
def environment(
    env: str = "", config: str = "", max_turns: int = 0, noise: float = 0.3, n_test: int = 100, seed: int = 0
) -> TaskSource:
    """An environment of your own: a class with reset and step (docs/environments.md).

    env        FILE.py:Class
    config     arguments of its constructor, as key=value,key=value or JSON
    max_turns  turns of an episode, at most; 0: the class's own
    noise      share of the demonstrated moves that are random
    n_test     test episodes
    seed       of every random draw
    """
    task_options = dict(locals())
    if not env:
        raise BadValue("task environment: which one? give --env FILE.py:Class, in Python train(..., env=Class)")
    cls = env_class(env)
    name, given = cls.__name__, parse_config("environment", config)
    known = signature(cls.__init__).parameters if cls.__init__ is not object.__init__ else {}
    for option in given:
        if option not in known and not any(p.kind == p.VAR_KEYWORD for p in known.values()):
            raise unknown(f"argument of {name}", option, [n for n in known if n != "self"])
    file = inspect.getsourcefile(cls) if env.rpartition(":")[0].endswith(".py") else None
    return environment_source(
        "environment",
        lambda: cls(**given),
        name,
        task_options,
        cls,
        files=(file,) if file else (),
    )
