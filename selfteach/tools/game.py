"""What a game is to a match: how it opens, what is told, which moves there are, and how an expert plays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Chances = dict[str, float]


@dataclass(frozen=True)
class Game:
    """One of TextArena's games in a compact form.

    name      of its folder there; `make` builds the engine from its module
    opening   (match, seat) -> what stands at the beginning, up to a line's end
    news      (match, seat, what the other said last) -> what happened and what may be done, up to a line's end
    options   (match, seat) -> what may be done
    moves     (match, seat) -> allowed moves
    expert    (match, seat) -> moves with their chances
    payoffs   (match) -> chips of the two seats; None: the engine's own 1, -1 or 0
    most      the most that can be lost
    """

    name: str
    make: Callable[[Any], Any]
    opening: Callable[[Any, int], str]
    news: Callable[[Any, int, str], str]
    options: Callable[[Any, int], str]
    moves: Callable[[Any, int], list[str]]
    expert: Callable[[Any, int], Chances]
    payoffs: Callable[[Any], tuple[float, float]] | None = None
    most: float = 1.0
