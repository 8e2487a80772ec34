"""Nim with two piles: whoever takes the last object wins.

Who can leave two equal piles wins: a move that is found by one subtraction, and by hardly anybody without it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..core.random_keys import generator
from .game import Game, MoveProbabilities

if TYPE_CHECKING:
    from .games import Match

PILES, LARGEST = 2, 7
_MOVE = re.compile(r"\[\s*(\d+)\s+(\d+)\s*\]")


def deal(engine: Any, number: int) -> None:
    """Give the engine the piles of a deal, from 1 to 7 in each."""
    engine.initial_piles = generator("nim", number).integers(1, LARGEST + 1, PILES).tolist()


def piles(match: Match) -> list[int]:
    """What lies in each pile."""
    return list(match.state["piles"])


def opening(match: Match, seat: int) -> str:
    """The game's name."""
    return "nim.\n"


def update(match: Match, seat: int, opponent_text: str) -> str:
    """The piles."""
    return f"piles {' '.join(map(str, piles(match)))}\n"


def options(match: Match, seat: int) -> str:
    """The legal moves, in words."""
    return f"you may {' '.join(moves(match, seat))}"


def moves(match: Match, seat: int) -> list[str]:
    """The legal moves: a pile's number, and how many to take from it."""
    return [f"[{n} {taken}]" for n, pile in enumerate(piles(match)) for taken in range(1, pile + 1)]


def expert(match: Match, seat: int) -> MoveProbabilities:
    """The moves that leave equal piles (a nim-sum of 0, Bouton 1901), equally likely; any where none does."""
    legal = moves(match, seat)
    best = [m for m in legal if not _nim_sum(_after(piles(match), m))] or legal
    return dict.fromkeys(best, 1 / len(best))


def thought(match: Match, seat: int) -> str:
    """What leads to an expert's move: by how much the larger pile exceeds the smaller.

    That much is taken from the larger, and where it is 0 the position is lost.
    """
    low, high = sorted(piles(match))
    return f"<think> {high} - {low} = {high - low}.</think>"


def _after(before: list[int], move: str) -> list[int]:
    found = _MOVE.search(move)
    assert found is not None
    at, taken = int(found[1]), int(found[2])
    return [pile - taken * (n == at) for n, pile in enumerate(before)]


def _nim_sum(sizes: list[int]) -> int:
    total = 0
    for size in sizes:
        total ^= size
    return total


GAME = Game("Nim", lambda module: module.NimEnv(), opening, update, options, moves, expert, deal=deal, thought=thought)
