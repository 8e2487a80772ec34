"""Kuhn poker (Kuhn 1950): three cards, one each, one chip each in the pot, one bet of one chip.

In equilibrium the first to move loses 1/18 chip a game.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .game import Game, MoveProbabilities

if TYPE_CHECKING:
    from .games import Match

_MOVE = re.compile(r"\[(check|bet|fold|call)\]", re.IGNORECASE)
CARDS = "JQK"


def make_env(module: Any) -> Any:
    """TextArena's engine for one round, corrected so that a bet costs a chip.

    There a bet costs nothing, as only the antes are ever in the pot.
    """

    class Kuhn(module.KuhnPokerEnv):
        def step(self, action: str) -> Any:
            state, player, name = self.state.game_state, self.state.current_player_id, parse_move(action)
            if name in ("bet", "call") and name in state["current_legal_action_tree"]:
                state["player_chips"][player] -= 1
                state["pot"] += 1
            return super().step(action)

    return Kuhn(max_rounds=1)


def parse_move(text: str) -> str:
    """The name of the first move in a text, "" where there is none.

    >>> parse_move("I think [Bet] is best")
    'bet'
    """
    match = _MOVE.search(text)
    return match.group(1).lower() if match else ""


def card(match: Match, seat: int) -> str:
    """The card of a seat: J, Q or K."""
    return CARDS[match.state["player_cards"][match.player(seat)]]


def opening(match: Match, seat: int) -> str:
    """The seat and its card."""
    return f"kuhn poker, {('first', 'second')[seat]}. your card: {card(match, seat)}.\n"


def update(match: Match, seat: int, opponent_text: str) -> str:
    """What the opponent did, and the legal moves."""
    return (f"they {parse_move(opponent_text)}. " if opponent_text else "") + options(match, seat) + "\n"


def options(match: Match, seat: int) -> str:
    """The legal moves, in words."""
    return f"you may {' '.join(moves(match, seat))}"


def moves(match: Match, seat: int) -> list[str]:
    """The legal moves."""
    return [f"[{m}]" for m in match.state["current_legal_action_tree"]]


def expert(match: Match, seat: int) -> MoveProbabilities:
    """A Nash equilibrium (Kuhn 1950).

    Of the family in which the first seat bets a jack with a probability a from 0 to 1/3, the one with a = 1/3.
    """
    own, legal = card(match, seat), match.state["current_legal_action_tree"]
    if "fold" in legal:
        call = {"J": 0.0, "Q": 2 / 3 if seat == 0 else 1 / 3, "K": 1.0}[own]
        return _mixed("[call]", call, "[fold]")
    return _mixed("[bet]", {"J": 1 / 3, "Q": 0.0, "K": 1.0}[own], "[check]")


def payoffs(match: Match) -> tuple[float, float]:
    """Chips won: the engine's count, less the antes that it takes for a round that is not played."""
    chips = match.state["player_chips"]
    return float(chips[match.player(0)] + 1), float(chips[match.player(1)] + 1)


def _mixed(move: str, probability: float, other: str) -> MoveProbabilities:
    return {m: p for m, p in ((move, probability), (other, 1 - probability)) if p > 0}


GAME = Game("KuhnPoker", make_env, opening, update, options, moves, expert, payoffs, max_loss=2.0)
