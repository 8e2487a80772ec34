"""Two-player games on TextArena's engines, with the bets that its Kuhn poker leaves out of the pot, and players to measure against.

The engines draw from Python's global generator. Every match has a state of its own, which is put in its place while the engine runs and
taken out again, so that a match is a function of its deal and its moves, however many are played at once.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random, getstate, setstate
from typing import Any

from ..core.errors import BadValue, unknown
from ..core.part import block
from ..core.task import Task
from . import kuhn, negotiation, tictactoe

GAMES = {"kuhn": kuhn.GAME, "tictactoe": tictactoe.GAME, "negotiation": negotiation.GAME}
SEATS = ("first", "second")
PLAYERS = ("random", "expert")
_ONE_AT_A_TIME = threading.Lock()


class Match:
    """One game between two seats, 0 for who moves first, 1 for the other.

    `turn`: the seat to move, None when it is over. A move that is not allowed is told to who made it, who may try once more; the second
    in a row forfeits. `payoffs` sum to zero: 1, -1 or 0, in Kuhn poker the chips won; a forfeit loses the most that can be lost.
    """

    def __init__(self, game: str, deal: int, full: bool = False):
        if game not in GAMES:
            raise unknown("game", game, GAMES)
        self.game, self.full, self.history = GAMES[game], full, list[tuple[int, str]]()
        self.payoffs, self.reason, self.forfeited = (0.0, 0.0), "", None
        self._state = Random(deal).getstate()
        self._fault = ""
        self._asked = [0, 0]
        with self._isolated():
            self.engine = self.game.make(_module(self.game.name))
            self.engine.reset(num_players=2)
        self._first: int = self.engine.state.current_player_id
        self.turn: int | None = 0

    @contextmanager
    def _isolated(self) -> Iterator[None]:
        """The match's own random state in the place of the global one."""
        with _ONE_AT_A_TIME:
            outside = getstate()
            setstate(self._state)
            try:
                yield
            finally:
                self._state = getstate()
                setstate(outside)

    def player(self, seat: int) -> int:
        """The engine's number for a seat."""
        return self._first if seat == 0 else 1 - self._first

    @property
    def state(self) -> Mapping[str, Any]:
        """The engine's own state of the game."""
        return self.engine.state.game_state

    def told(self, seat: int) -> str:
        """What a seat is told before it moves: the game as it opens, what the other did, what may be done now. Compact, or the engine's words."""
        opening = not self._asked[seat]
        self._asked[seat] += 1
        if self.full:
            new = self.engine.state.observations[self.player(seat)]
            self.engine.state.observations[self.player(seat)] = []
            names = self.engine.state.role_mapping
            return ("" if opening else "\n") + "\n".join(f"[{names.get(by, by)}] {text}" for by, text, _ in new) + "\n"
        if self._fault:
            return f"\nnot allowed. {self.game.options(self, seat)}\n"
        said = next((text for by, text in reversed(self.history) if by != seat), "")
        return (self.game.opening(self, seat) if opening else "\n") + self.game.news(self, seat, said)

    def moves(self, seat: int) -> list[str]:
        """Moves that are allowed now; of endless ones (offers) some."""
        return self.game.moves(self, seat)

    def move(self, text: str) -> None:
        """Play a move, as a text in which the engine finds it. Raises BadValue when the game is over."""
        if self.turn is None:
            raise BadValue(f"game {self.game.name}: it is over")
        seat, state = self.turn, self.engine.state
        with self._isolated():
            done, _ = self.engine.step(text)
        self._fault = "" if done or not state.error_count else text
        if not self._fault:
            self.history.append((seat, text))
        if done:
            rewards, info = self.engine.close()
            faulty = next((s for s in (0, 1) if info[self.player(s)]["invalid_move"]), None)
            if faulty is not None:
                return self.forfeit(faulty, f"{SEATS[faulty]} made a move that is not allowed")
            self.turn = None
            self.payoffs = self.game.payoffs(self) if self.game.payoffs else (float(rewards[self._first]), float(rewards[1 - self._first]))
            self.reason = str(info[0]["reason"])
        else:
            self.turn = 0 if state.current_player_id == self._first else 1

    def forfeit(self, seat: int, reason: str) -> None:
        """End the game against a seat."""
        self.turn, self.forfeited, self.reason = None, seat, reason
        self.payoffs = (-self.game.most, self.game.most) if seat == 0 else (self.game.most, -self.game.most)

    def strategy(self, player: str, seat: int) -> dict[str, float]:
        """Moves of a player that needs no model, with their chances: `random`, or `expert` (see the games). Raises UnknownName."""
        if player not in PLAYERS:
            raise unknown("player", player, (*PLAYERS, "a member of the cast"))
        if player == "expert":
            return self.game.expert(self, seat)
        options = self.moves(seat)
        return dict.fromkeys(options, 1 / len(options))

    def chosen(self, player: str, seat: int, u: float) -> str:
        """The move that such a player makes at a uniform draw `u`."""
        chances = self.strategy(player, seat)
        for text, chance in chances.items():
            u -= chance
            if u < 0:
                return text
        return next(reversed(chances))


@block
def match(*, full: bool = False) -> Callable[[Task], Any]:
    """Opens the match of a task (tags game and deal), for the program `play`. full: observations in the engine's own words."""

    async def begin(task: Task) -> Match:
        return Match(task.tags["game"], task.tags["deal"], full)

    return begin


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"textarena.envs.{name}.env")
    except ModuleNotFoundError as error:
        raise BadValue(f"games: the package textarena is not installed ({error.name}); pip install 'selfteach[games]'") from None
