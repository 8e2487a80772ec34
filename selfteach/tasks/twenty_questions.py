"""Twenty questions over a table of objects (`tools/twenty_questions.py`), with demonstrations that ask in many ways."""

from __future__ import annotations

import numpy as np

from ..core.random_keys import generator, key, uniform_at
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..tools.twenty_questions import OBJECTS, PROPERTIES, TwentyQuestions
from .environment import MOST_TURNS
from .options import check_at_least, check_range, check_share, check_shares
from .played import PlayedTasks

WAYS = ("expert", "wanderer", "repeater", "guesser")


def say(way: str, world: TwentyQuestions, observation: str, draw: np.random.Generator) -> str:
    """What a way says: an even split, any question, one that was asked, a guess too early."""
    if way == "repeater" and world.asked:
        return f"ask {draw.choice(sorted(world.asked))}"
    if way == "guesser":
        return f"guess {draw.choice(sorted(world.left))}"
    return world.expert() if way == "expert" else f"ask {draw.choice(PROPERTIES)}"


@task
def twenty_questions(
    ways: tuple[float, ...] = (0.45, 0.27, 0.22, 0.06),
    change: float = 0.5,
    held_out: float = 0.25,
    max_turns: int = 8,
    n_test: int = 400,
    seed: int = 0,
) -> TaskSource:
    """Twenty questions: sixteen objects and eight properties, of which one is not answered in an episode.

    What the objects are like is nowhere in the prompt: it is known by heart. Every second test episode pairs an object
    with an unanswered property as no training episode does.

    ways       share of the demonstrated turns that go each way: expert (asks what splits best), wanderer (asks
               anything), repeater (asks again), guesser (names any object that is left); sums to 1
    change     chance at each turn that its way is drawn anew; 0: a whole episode goes one way
    held_out   share of the pairs of object and unanswered property that only the test has
    max_turns  turns of an episode, at most
    n_test     test episodes
    seed       of every random draw, and of the objects' properties
    """
    task_options = dict(locals())
    shares = check_shares("twenty_questions", "ways", ways, WAYS)
    check_share("twenty_questions", "change", change)
    check_share("twenty_questions", "held_out", held_out)
    check_range("twenty_questions", "max_turns", (max_turns, MOST_TURNS), 1, MOST_TURNS)
    check_at_least("twenty_questions", "n_test", n_test, 1)
    every = [(x, p) for x in OBJECTS for p in PROPERTIES]
    unseen = [pair for pair in every if uniform_at(key(seed, "unseen", *pair), 0) < held_out]
    seen = [pair for pair in every if pair not in unseen]

    def episode(kind: str, i: int, new: bool) -> Task:
        pairs = (unseen or every) if new else (seen or every)
        thing, unsure = pairs[int(generator(seed, "episode", kind, i).integers(len(pairs)))]
        tags = {"environment": "twenty_questions", "object": thing, "unsure": unsure, "table": seed}
        split = "unseen" if new else "seen"
        return Task(
            f"{kind}/{i}", "play twenty_questions.\n", ("success",), tags={**tags, "category": unsure, "split": split}
        )

    tasks = PlayedTasks(TwentyQuestions, episode, say, shares, change, max_turns, n_test, seed)
    return tasks.source("twenty_questions", task_options, {"pairs held out": len(unseen)})
