"""Kuhn poker (Kuhn 1950): three cards, one each, one chip each in the pot, one bet of one chip. The first to move loses 1/18 a game at best."""

from __future__ import annotations

import re
from typing import Any

from .game import Chances, Game

_MOVE = re.compile(r"\[(check|bet|fold|call)\]", re.IGNORECASE)
CARDS = "JQK"


def make(module: Any) -> Any:
    """TextArena's engine for one round. There a bet costs nothing, as only the antes are ever in the pot; here it is one chip, as in the game."""

    class Kuhn(module.KuhnPokerEnv):
        def step(self, action: str) -> Any:
            state, by, said = self.state.game_state, self.state.current_player_id, move(action)
            if said in ("bet", "call") and said in state["current_legal_action_tree"]:
                state["player_chips"][by] -= 1
                state["pot"] += 1
            return super().step(action)

    return Kuhn(max_rounds=1)


def move(text: str) -> str:
    """The move in a text, "" where there is none.

    >>> move("I think [Bet] is best")
    'bet'
    """
    found = _MOVE.search(text)
    return found.group(1).lower() if found else ""


def card(match: Any, seat: int) -> str:
    """The card of a seat: J, Q or K."""
    return CARDS[match.state["player_cards"][match.player(seat)]]


def opening(match: Any, seat: int) -> str:
    return f"kuhn poker, {('first', 'second')[seat]}. your card: {card(match, seat)}.\n"


def news(match: Any, seat: int, said: str) -> str:
    return (f"they {move(said)}. " if said else "") + options(match, seat) + "\n"


def options(match: Any, seat: int) -> str:
    return f"you may {' '.join(moves(match, seat))}"


def moves(match: Any, seat: int) -> list[str]:
    return [f"[{m}]" for m in match.state["current_legal_action_tree"]]


def expert(match: Any, seat: int) -> Chances:
    """A Nash equilibrium (Kuhn 1950), of the family in which the first bets a jack with chance a from 0 to 1/3 the one with a = 1/3."""
    mine, may = card(match, seat), match.state["current_legal_action_tree"]
    if "fold" in may:
        called = {"J": 0.0, "Q": 2 / 3 if seat == 0 else 1 / 3, "K": 1.0}[mine]
        return _mixed("[call]", called, "[fold]")
    return _mixed("[bet]", {"J": 1 / 3, "Q": 0.0, "K": 1.0}[mine], "[check]")


def payoffs(match: Any) -> tuple[float, float]:
    """Chips won: the engine's count, less the antes that it takes for a round that is not played."""
    chips = match.state["player_chips"]
    return float(chips[match.player(0)] + 1), float(chips[match.player(1)] + 1)


def _mixed(one: str, chance: float, other: str) -> Chances:
    return {m: c for m, c in ((one, chance), (other, 1 - chance)) if c > 0}


GAME = Game("KuhnPoker", make, opening, news, options, moves, expert, payoffs, most=2.0)
