"""Tasks of a household of rooms, containers and a key (`tools/household.py`), demonstrated in several ways."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..core.random_keys import generator, key, uniform_at
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..tools.household import CONTAINERS, LOCKED, QUIT, REFUSED, THINGS, THOUGHTS, TREATMENTS, Household
from .environment import MOST_TURNS
from .options import check_at_least, check_range, check_share, check_shares
from .played import PlayedTasks

WAYS = ("expert", "wanderer", "repeater", "quitter")


@dataclass(frozen=True, eq=False)
class HouseholdEpisodes:
    """The tasks of episodes, and what each way says in them."""

    thoughts: bool = True
    unthought: float = 0.0
    held_out: float = 0.25
    locked: float = 0.25
    slips: float = 0.0
    seed: int = 0

    def is_unseen(self, thing: str, treatment: str) -> bool:
        """Whether a thing and a treatment are only asked together in the test."""
        return uniform_at(key(self.seed, "unseen", thing, treatment), 0) < self.held_out

    @cached_property
    def pairs(self) -> dict[bool, list[tuple[str, str]]]:
        """Things with treatments ("": none), by whether they are unseen in training."""
        every = [(x, t) for x in THINGS for t in ("", *TREATMENTS)]
        return {unseen: [p for p in every if self.is_unseen(*p) == unseen] for unseen in (False, True)}

    def task(self, kind: str, i: int, unseen: bool) -> Task:
        """The task of an episode.

        tags  environment, seed, thing, treatment, target, locked, slips, category (the treatment, or `put`), split
              (seen or unseen: whether training has the thing with that treatment)
        """
        draw = generator(self.seed, "household", kind, i)
        pairs = self.pairs[unseen] or self.pairs[not unseen]
        thing, treatment = pairs[int(draw.integers(len(pairs)))]
        tags = {
            "environment": "household",
            "seed": int(draw.integers(2**31)) // 2 * 2 + (kind == "test"),
            "thing": thing,
            "treatment": treatment,
            "target": CONTAINERS[int(draw.integers(len(CONTAINERS)))],
            "locked": self.locked,
            "slips": self.slips,
            "category": treatment or "put",
            "split": "unseen" if self.is_unseen(thing, treatment) else "seen",
        }
        return Task(f"{kind}/{i}", "play household.\n", ("success",), tags=tags)

    def say(self, way: str, world: Household, observation: str, draw: np.random.Generator) -> str:
        """What a way says: an action, after the kind of its thought."""
        action = self.action(way, world, observation, draw)
        return " ".join(filter(None, (self.thought(way, action, world, observation, draw), action)))

    def action(self, way: str, world: Household, observation: str, draw: np.random.Generator) -> str:
        """The next action of a way.

        expert    what leads on, by all that was seen
        wanderer  to some room, or a look around
        repeater  what has just failed once more, else what cannot be done
        quitter   the end
        """
        if way == "quitter":
            return QUIT
        if way == "repeater":
            futile = world.futile()
            failed = bool(world.said) and observation == REFUSED
            return world.said[-1] if failed else futile[int(draw.integers(len(futile)))]
        if way == "wanderer":
            options = [a for a in world.actions() if a.startswith(("go", "look"))]
            return options[int(draw.integers(len(options)))]
        return world.expert()

    def thought(self, way: str, action: str, world: Household, observation: str, draw: np.random.Generator) -> str:
        """The kind of thought that a turn begins with; of an expert it fits, of others it is any."""
        if not self.thoughts or draw.random() < self.unthought:
            return ""
        if way != "expert":
            return THOUGHTS[int(draw.integers(len(THOUGHTS)))]
        if not world.said:
            return "plan"
        if observation in (REFUSED, LOCKED):
            return "reflect"
        searching = world.world.thing not in world.carried and not action.startswith("take")
        return "explore" if searching else "monitor"


@task
def household(
    ways: tuple[float, ...] = (0.5, 0.25, 0.21, 0.04),
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
    episodes = HouseholdEpisodes(thoughts, unthought, held_out, locked, slips, seed)
    tasks = PlayedTasks(Household, episodes.task, episodes.say, shares, change, max_turns, n_test, seed)
    return tasks.source("household", task_options, {"pairs held out": len(episodes.pairs[True])})
