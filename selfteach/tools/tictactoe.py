"""Tic-tac-toe: a draw where both play well."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from .game import Game, MoveProbabilities

if TYPE_CHECKING:
    from .games import Match

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def board(match: Match) -> str:
    """Nine characters: X, O, or a dot for a free square."""
    return "".join(square or "." for row in match.state["board"] for square in row)


def mark(match: Match, seat: int) -> str:
    """X or O."""
    return "X" if match.player(seat) == 1 else "O"


def opening(match: Match, seat: int) -> str:
    """The seat's mark."""
    return f"tic-tac-toe, you are {mark(match, seat)}.\n"


def update(match: Match, seat: int, opponent_text: str) -> str:
    """The board, a line per row, free squares by number."""
    squares = [s if s != "." else str(n) for n, s in enumerate(board(match))]
    return "".join(" ".join(squares[n : n + 3]) + "\n" for n in (0, 3, 6))


def options(match: Match, seat: int) -> str:
    """The legal moves, in words."""
    return f"you may {' '.join(moves(match, seat))}"


def moves(match: Match, seat: int) -> list[str]:
    """The free squares."""
    return [f"[{n}]" for n, s in enumerate(board(match)) if s == "."]


def expert(match: Match, seat: int) -> MoveProbabilities:
    """The minimax moves, equally likely: a win as early, a loss as late as can be."""
    position, own = board(match), mark(match, seat)
    values = {
        n: -value(position[:n] + own + position[n + 1 :], _other(own)) for n, s in enumerate(position) if s == "."
    }
    best = [n for n, v in values.items() if v == max(values.values())]
    return {f"[{n}]": 1 / len(best) for n in best}


@cache
def value(position: str, mover: str) -> int:
    """The minimax value of a board for the mark to move: free squares + 1 at the end for a win, 0 for a draw.

    A loss is the negative of that.
    """
    if any(position[a] == position[b] == position[c] == _other(mover) for a, b, c in LINES):
        return -(position.count(".") + 1)
    free = [n for n, s in enumerate(position) if s == "."]
    return max((-value(position[:n] + mover + position[n + 1 :], _other(mover)) for n in free), default=0)


def _other(mark: str) -> str:
    return "O" if mark == "X" else "X"


GAME = Game("TicTacToe", lambda module: module.TicTacToeEnv(), opening, update, options, moves, expert)
