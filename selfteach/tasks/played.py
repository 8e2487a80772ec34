"""Played episodes of an environment as demonstrations, in which each turn goes one of several ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from ..core.env import Env
from ..core.random_keys import generator
from ..core.task import Task, TaskSource
from ..reward.payoff import episode_return
from ..rollout.act import act
from ..tools.environment import environment as environment_tool
from .question_sampler import pick

World = TypeVar("World", bound=Env)
TOKENIZER_EPISODES = 500  # that the tokenizer sees


@dataclass(frozen=True, eq=False)
class PlayedTasks(Generic[World]):
    """Episodes of an environment as tasks, and whole episodes that were played in several ways as demonstrations.

    make         the environment
    task         (kind, number, unseen) -> the task of an episode; kind: train, test or demo; unseen: of what only the
                 test has
    say          (way, world, last observation, random draws) -> what a way says now
    ways         way -> its share of the turns
    change       chance at each turn that its way is drawn anew; 0: a whole episode goes one way
    """

    make: type[World]
    task: Callable[[str, int, bool], Task]
    say: Callable[[str, World, str, np.random.Generator], str]
    ways: Mapping[str, float]
    change: float
    max_turns: int
    n_test: int
    seed: int

    def train(self, i: int) -> Task:
        """The i-th training episode."""
        return self.task("train", i, False)

    @cached_property
    def test(self) -> tuple[Task, ...]:
        """The test episodes, every second one of what training does not have."""
        return tuple(self.task("test", i, i % 2 == 1) for i in range(self.n_test))

    def demo(self, i: int) -> Task:
        """The i-th demonstration: an episode played to its end, whose data are what was said and seen, in turns.

        tags  those of the episode, kind, ways (of each turn), success
        """
        return self.played("demo", i, self.ways)

    def practice(self, i: int) -> Task:
        """The i-th demonstration of what comes before them: an episode played by the expert."""
        return self.played("practice", i, {"expert": 1.0})

    def played(self, kind: str, i: int, shares: Mapping[str, float]) -> Task:
        """An episode played in ways of these shares."""
        task, draw, world = self.task(kind, i, False), generator(self.seed, "play", kind, i), self.make()
        prompt, pieces, ways = world.reset(task) + "\n", list[str](), list[str]()
        observation, rewards, done = "", list[float](), False
        while not done and len(ways) < self.max_turns:
            ways.append(ways[-1] if ways and draw.random() >= self.change else pick(shares, draw.random()))
            said = self.say(ways[-1], world, observation, draw)
            pieces += [observation + "\n"] * bool(pieces) + [said + "\n"]
            observation, reward, done = world.step(said)
            rewards.append(reward)
        success = float(done and world.success(rewards))
        tags = {**task.tags, "kind": kind, "ways": tuple(ways), "success": success}
        return Task(task.id, prompt, task.answer, tuple(pieces), tags)

    def words(self) -> Iterator[str]:
        """Text for the tokenizer: episodes in which all ways are gone equally often, so that it depends on no share."""
        shares = dict.fromkeys(self.ways, 1 / len(self.ways))
        for i in range(TOKENIZER_EPISODES):
            item = self.played("words", i, {"expert": 1.0} if i % 2 else shares)
            yield item.prompt + "".join(item.data)

    def source(self, name: str, task_options: Mapping[str, Any], about: Mapping[str, Any]) -> TaskSource:
        """The source of the episodes, played by `act` and judged by `episode_return`; figures by the tag `split`."""
        return TaskSource(
            name=name,
            train=self.train,
            test=self.test,
            demos=self.demo,
            practice=self.practice,
            words=self.words,
            tools={"environment": environment_tool(make=self.make, name=name, in_thread=self.make.in_thread)},
            program=act(max_turns=self.max_turns),
            defaults={
                "judge": episode_return(),
                "max_tokens": self.make.max_tokens,
                "by": "split",
                "lr": 3e-4,
                "warm_practice_steps": 1500,
                "warm_steps": 300,
                "warm_batch": 32,
                "warm_lr": 2e-3,
            },
            task_options=task_options,
            about={"test episodes": self.n_test, "turns": self.max_turns, **about},
        )
