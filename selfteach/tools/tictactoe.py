"""Tic-tac-toe. Played well by both it is a draw."""

from __future__ import annotations

from functools import cache
from typing import Any

from .game import Chances, Game

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def board(match: Any) -> str:
    """Nine characters: X, O, or a dot for a free square."""
    return "".join(square or "." for row in match.state["board"] for square in row)


def mark(match: Any, seat: int) -> str:
    return "X" if match.player(seat) == 1 else "O"


def opening(match: Any, seat: int) -> str:
    return f"tic-tac-toe, you are {mark(match, seat)}.\n"


def news(match: Any, seat: int, said: str) -> str:
    """The board, a line per row, free squares by number."""
    squares = [s if s != "." else str(n) for n, s in enumerate(board(match))]
    return "".join(" ".join(squares[at : at + 3]) + "\n" for at in (0, 3, 6))


def options(match: Any, seat: int) -> str:
    return f"you may {' '.join(moves(match, seat))}"


def moves(match: Any, seat: int) -> list[str]:
    return [f"[{n}]" for n, s in enumerate(board(match)) if s == "."]


def expert(match: Any, seat: int) -> Chances:
    """Any of the best moves, each as likely: a win as early, a loss as late as can be."""
    here, mine = board(match), mark(match, seat)
    worth = {m: -value(here[:m] + mine + here[m + 1 :], _other(mine)) for m, s in enumerate(here) if s == "."}
    best = [m for m, v in worth.items() if v == max(worth.values())]
    return {f"[{m}]": 1 / len(best) for m in best}


@cache
def value(here: str, mover: str) -> int:
    """What a board is worth to who is to move: squares left + 1 for a win in the end, 0 for a draw, the negative for a loss."""
    if any(here[a] == here[b] == here[c] == _other(mover) for a, b, c in LINES):
        return -(here.count(".") + 1)
    free = [m for m, s in enumerate(here) if s == "."]
    return max((-value(here[:m] + mover + here[m + 1 :], _other(mover)) for m in free), default=0)


def _other(mark: str) -> str:
    return "O" if mark == "X" else "X"


GAME = Game("TicTacToe", lambda module: module.TicTacToeEnv(), opening, news, options, moves, expert)
