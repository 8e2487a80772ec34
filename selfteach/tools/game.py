"""What a game gives to a match: its observations, its legal moves, an expert's strategy, its payoffs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .games import Match

MoveProbabilities = dict[str, float]  # a move's text -> its probability


@dataclass(frozen=True)
class Game:
    """One of TextArena's games, with observations in a compact form.

    name       of its folder in TextArena; `make_env` builds the engine from the module there
    opening    (match, seat) -> the first observation's beginning, up to a line's end
    update     (match, seat, the opponent's last text) -> what happened and what may be done, up to a line's end
    options    (match, seat) -> what may be done, in words
    moves      (match, seat) -> legal moves
    expert     (match, seat) -> moves with their probabilities
    payoffs    (match) -> chips of the two seats; None: the engine's own 1, -1 or 0
    max_loss   the most that a seat can lose, which a forfeit costs
    deal       (engine, number) gives it the position that a game begins with; None: the engine draws it itself
    thought    (match, seat) -> what an expert writes before a move, where thoughts are shown; None: nothing
    """

    name: str
    make_env: Callable[[Any], Any]
    opening: Callable[[Match, int], str]
    update: Callable[[Match, int, str], str]
    options: Callable[[Match, int], str]
    moves: Callable[[Match, int], list[str]]
    expert: Callable[[Match, int], MoveProbabilities]
    payoffs: Callable[[Match], tuple[float, float]] | None = None
    max_loss: float = 1.0
    deal: Callable[[Any, int], None] | None = None
    thought: Callable[[Match, int], str] | None = None
