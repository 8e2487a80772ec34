"""Tasks in a household of rooms, containers and a key (`tools/household.py`), and demonstrations that go several ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from ..core.random_keys import generator, key, uniform_at
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..reward.payoff import episode_return
from ..rollout.act import act
from ..tools.environment import environment as environment_tool
from ..tools.household import CONTAINERS, QUIT, REFUSED, THINGS, THOUGHTS, TREATMENTS, Household, World
from .environment import MOST_TURNS
from .options import check_at_least, check_range, check_share, check_shares
from .question_sampler import TOKENIZER_DEMOS, pick

WAYS = ("expert", "wanderer", "repeater", "quitter")


@dataclass(frozen=True, eq=False)
class HouseholdTasks:
    """Episodes as tasks, and whole played episodes as demonstrations."""

    ways: dict[str, float]
    change: float = 0.5
    thoughts: bool = True
    unthought: float = 0.0
    held_out: float = 0.25
    locked: float = 0.25
    slips: float = 0.0
    max_turns: int = 12
    n_test: int = 400
    seed: int = 0

    def is_unseen(self, thing: str, treatment: str) -> bool:
        """Whether a thing and a treatment are only asked together in the test."""
        return uniform_at(key(self.seed, "unseen", thing, treatment), 0) < self.held_out

    @cached_property
    def pairs(self) -> dict[bool, list[tuple[str, str]]]:
        """Things with treatments ("": none), by whether they are unseen in training."""
        every = [(x, t) for x in THINGS for t in ("", *TREATMENTS)]
        return {unseen: [p for p in every if self.is_unseen(*p) == unseen] for unseen in (False, True)}

    def task(self, kind: str, i: int, unseen: bool = False) -> Task:
        """The task of an episode.

        tags  environment, seed, thing, treatment, target, locked, slips, category (the treatment, or `put`), split
              (seen or unseen: whether training has the thing with that treatment)
        """
        draw = generator(self.seed, "household", kind, i)
        pairs = self.pairs[unseen] or self.pairs[not unseen]
        thing, treatment = pairs[int(draw.integers(len(pairs)))]
        target = CONTAINERS[int(draw.integers(len(CONTAINERS)))]
        tags = {
            "environment": "household",
            "seed": int(draw.integers(2**31)) // 2 * 2 + (kind == "test"),
            "thing": thing,
            "treatment": treatment,
            "target": target,
            "locked": self.locked,
            "slips": self.slips,
            "category": treatment or "put",
            "split": "unseen" if self.is_unseen(thing, treatment) else "seen",
        }
        return Task(f"{kind}/{i}", "play household.\n", ("success",), tags=tags)

    def train(self, i: int) -> Task:
        """The i-th training episode."""
        return self.task("train", i)

    @cached_property
    def test(self) -> tuple[Task, ...]:
        """The test episodes, every second one of a thing with a treatment that training does not have."""
        return tuple(self.task("test", i, unseen=i % 2 == 1) for i in range(self.n_test))

    def demo(self, i: int) -> Task:
        """The i-th demonstration: an episode played to its end, whose data are what was said and seen, in turns.

        tags  those of the episode, kind, ways (of each turn), success
        """
        task, draw = self.task("demo", i), generator(self.seed, "play", i)
        world = Household()
        prompt, pieces, ways = world.reset(task) + "\n", list[str](), list[str]()
        observation, won = "", False
        while not world.is_done and len(ways) < self.max_turns:
            if not ways or draw.random() < self.change:
                way = pick(self.ways, draw.random())
            else:
                way = ways[-1]
            action = self.choose(way, world, observation, draw)
            thought = self.thought(way, action, world, observation, draw)
            pieces += [observation + "\n"] if ways else []
            pieces.append(" ".join(filter(None, (thought, action))) + "\n")
            ways.append(way)
            observation, reward, _ = world.step(pieces[-1].strip())
            won = won or reward > 0
        tags = {**task.tags, "kind": "demo", "ways": tuple(ways), "success": float(won)}
        return Task(task.id, prompt, task.answer, tuple(pieces), tags)

    def choose(self, way: str, world: Household, observation: str, draw: np.random.Generator) -> str:
        """The next action of a way.

        expert    what leads on, by all that was seen
        wanderer  some room, or a look around, or whatever can be done
        repeater  what has just failed once more, else what cannot be done
        quitter   the end
        """
        if way == "quitter":
            return QUIT
        if way == "repeater":
            failed = world.said and observation == REFUSED
            futile = world.futile()
            return world.said[-1] if failed else futile[int(draw.integers(len(futile)))]
        if way == "wanderer":
            options = [a for a in world.actions() if a.startswith(("go", "look"))]
            return options[int(draw.integers(len(options)))]
        return world.expert()

    def thought(
        self, way: str, action: str, world: Household, observation: str, draw: np.random.Generator
    ) -> str:
        """The kind of thought that a turn begins with; of an expert it fits, of others it is any."""
        if not self.thoughts or draw.random() < self.unthought:
            return ""
        if way != "expert":
            return THOUGHTS[int(draw.integers(len(THOUGHTS)))]
        if not world.said:
            return "plan"
        if observation in (REFUSED, "locked"):
            return "reflect"
        searching = world.world.thing not in world.carried and not action.startswith("take")
        return "explore" if searching else "monitor"

    def words(self) -> Iterator[str]:
        """Text for the tokenizer: demonstrations."""
        for i in range(TOKENIZER_DEMOS):
            item = self.demo(i)
            yield item.prompt + "".join(item.data)


@task
def household(
    ways: tuple[float, ...] = (0.5, 0.25, 0.2, 0.05),
    change: float = 0.5,
    thoughts: bool = True,
    unthought: float = 0.0,
    held_out: float = 0.25,
    locked: float = 0.25,
    slips: float = 0.0,
    max_turns: int = 12,
    n_test: int = 400,
    seed: int = 0,
) -> TaskSource:
    """A household of rooms, closed containers and a key: bring a thing somewhere, maybe treated on the way.

    An episode takes five to twelve turns of a few words each, and is rewarded at its end alone. How far one is from the
    goal is known at every turn. Every second test episode asks for a thing with a treatment that training never has.

    ways       share of the demonstrated turns that go each way: expert, wanderer (goes around needlessly), repeater
               (does what cannot be done, again and again), quitter (gives up); sums to 1
    change     chance at each turn that its way is drawn anew; 0: a whole episode goes one way
    thoughts   whether a turn begins with the kind of its thought: plan, explore, reflect, monitor
    unthought  share of the demonstrated turns that leave it out
    held_out   share of the pairs of thing and treatment that only the test asks for
    locked     chance that a container that matters is locked
    slips      chance that an action fails although it could be done
    max_turns  turns of an episode, at most
    n_test     test episodes
    seed       of every random draw
    """
    task_options = dict(locals())
    shares = check_shares("household", "ways", ways, WAYS)
    for name in ("change", "unthought", "held_out", "locked", "slips"):
        check_share("household", name, task_options[name])
    check_range("household", "max_turns", (max_turns, MOST_TURNS), 1, MOST_TURNS)
    check_at_least("household", "n_test", n_test, 1)
    tasks = HouseholdTasks(shares, change, thoughts, unthought, held_out, locked, slips, max_turns, n_test, seed)
    return TaskSource(
        name="household",
        train=tasks.train,
        test=tasks.test,
        demos=tasks.demo,
        words=tasks.words,
        tools={"environment": environment_tool(make=Household, name="household")},
        program=act(max_turns=max_turns),
        defaults={
            "judge": episode_return(),
            "max_tokens": Household.max_tokens,
            "by": "split",
            "lr": 3e-4,
            "warm_steps": 1500,
            "warm_batch": 32,
            "warm_lr": 2e-3,
        },
        task_options=task_options,
        about={
            "test episodes": n_test,
            "turns": max_turns,
            "pairs of thing and treatment held out": len(tasks.pairs[True]),
        },
    )
