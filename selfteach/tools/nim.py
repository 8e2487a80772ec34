"""Nim with three piles: whoever takes the last object wins.

Who can leave piles whose nim-sum (their exclusive or) is 0 wins (Bouton 1901): a move that is found in three small
steps, and by hardly anybody in one.
"""

from __future__ import annotations

from functools import reduce
from itertools import accumulate
from operator import xor
from typing import TYPE_CHECKING, Any

from ..core.random_keys import generator
from .game import Game, MoveProbabilities

if TYPE_CHECKING:
    from .games import Match

PILES, LARGEST = 3, 5


def deal(engine: Any, number: int) -> None:
    """Give the engine the piles of a deal, from 1 to 5 in each."""
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
    """The winning move, from the first pile where there is one; any move where there is none."""
    if winning := _winning(piles(match)):
        n, pile, rest = winning[0]
        return {f"[{n} {pile - rest}]": 1.0}
    legal = moves(match, seat)
    return dict.fromkeys(legal, 1 / len(legal))


def thought(match: Match, seat: int) -> str:
    """What leads to an expert's move: the nim-sum, pile by pile, and what the pile that it can shrink becomes.

    Of piles 3 5 4: 3 ^ 5 = 6. 6 ^ 4 = 2. 3 ^ 2 = 1. So two are taken from the first. Where the sum is 0 the position is
    lost.
    """
    before = piles(match)
    sums = list(accumulate(before, xor))
    steps = list(zip(sums[:-1], before[1:], sums[1:], strict=True))
    steps += [(pile, sums[-1], rest) for _, pile, rest in _winning(before)[:1]]
    return f"<think>{''.join(f' {a} ^ {b} = {c}.' for a, b, c in steps)}</think>"


def _winning(before: list[int]) -> list[tuple[int, int, int]]:
    """(number, size, what is left of it) of each pile that can be shrunk so that the nim-sum is 0."""
    total = reduce(xor, before)
    return [(n, pile, pile ^ total) for n, pile in enumerate(before) if pile ^ total < pile]


GAME = Game("Nim", lambda module: module.NimEnv(), opening, update, options, moves, expert, deal=deal, thought=thought)
