"""Guessing a number (`tools/guess_number.py`), with demonstrations that come to it sooner or later."""

from __future__ import annotations

import numpy as np

from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..tools.guess_number import LARGEST, GuessNumber
from .environment import MOST_TURNS
from .options import check_at_least, check_range, check_share, check_shares
from .played import PlayedTasks

WAYS = ("expert", "wanderer", "counter", "forgetful")


def say(way: str, world: GuessNumber, observation: str, draw: np.random.Generator) -> str:
    """What a way says: the middle of what is left, any of it, its least, any number."""
    if way == "wanderer":
        return f"guess {draw.integers(world.low, world.high + 1)}"
    if way == "counter":
        return f"guess {world.low}"
    return f"guess {draw.integers(1, LARGEST + 1)}" if way == "forgetful" else world.expert()


@task
def guess_number(
    ways: tuple[float, ...] = (0.06, 0.04, 0.45, 0.45),
    change: float = 0.5,
    max_turns: int = 10,
    n_test: int = 400,
    seed: int = 0,
) -> TaskSource:
    """Find a number from 1 to 31 by guesses, each of which is answered by higher or lower.

    Halving what is left takes five guesses at most; others find it too, later, so that how soon is to be learned apart
    from whether.

    ways       share of the demonstrated turns that go each way: expert (guesses the middle of what is left), wanderer
               (any of it), counter (its least), forgetful (any number, whatever was answered); sums to 1
    change     chance at each turn that its way is drawn anew; 0: a whole episode goes one way
    max_turns  turns of an episode, at most
    n_test     test episodes
    seed       of every random draw
    """
    task_options = dict(locals())
    shares = check_shares("guess_number", "ways", ways, WAYS)
    check_share("guess_number", "change", change)
    check_range("guess_number", "max_turns", (max_turns, MOST_TURNS), 1, MOST_TURNS)
    check_at_least("guess_number", "n_test", n_test, 1)

    def episode(kind: str, i: int, new: bool) -> Task:
        number = int(generator(seed, "episode", kind, i).integers(1, LARGEST + 1))
        tags = {"environment": "guess_number", "number": number, "category": "number", "split": "seen"}
        return Task(f"{kind}/{i}", "play guess_number.\n", ("success",), tags=tags)

    return PlayedTasks(GuessNumber, episode, say, shares, change, max_turns, n_test, seed).source(
        "guess_number", task_options, {"numbers": LARGEST}
    )
