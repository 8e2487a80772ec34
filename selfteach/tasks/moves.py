"""Moves of played episodes and matches, as demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..core import Task
from ..core.random_keys import generator

MOVES = 8  # demonstrations that are taken from one episode


class Move(NamedTuple):
    """A move of a demonstrated episode: all that was before it, what was said, and whether it was drawn at random."""

    before: str
    said: str
    is_random: bool


def demonstrated(episode: Callable[[int], Task], played: Callable[[int], Sequence[Move]], seed: int, i: int) -> Task:
    """The i-th demonstration: one move of an episode, after all that was before it.

    tags  those of the episode's task, kind, slip ("lot" for a random move, else "")
    """
    task, moves = episode(i // MOVES), played(i // MOVES)
    move = moves[int(generator(seed, "move", i).integers(len(moves)))]
    tags = {**task.tags, "kind": "demo", "slip": "lot" if move.is_random else ""}
    return Task(f"demo/{i}", move.before, task.answer, (move.said,), tags)
