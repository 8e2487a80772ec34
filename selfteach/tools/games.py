"""Two-player games on TextArena's engines, and players without a model to measure against.

The engines draw from Python's global generator. Every match has a state of its own, which takes the place of the global
one while the engine runs, so that a match is a function of its deal and its moves, however many are played at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..core.blocks import block
from ..core.errors import BadValue, unknown
from ..core.extras import optional
from ..core.task import Task
from ..core.user_code import on_run_loop
from . import kuhn, negotiation, nim, tictactoe
from .private_random import PrivateRandom

GAMES = {"kuhn": kuhn.GAME, "tictactoe": tictactoe.GAME, "negotiation": negotiation.GAME, "nim": nim.GAME}
SEATS = ("first", "second")
PLAYERS = ("random", "expert")


class Match:
    """One game between two seats: 0 moves first, 1 second.

    seats      two
    turn       the seat to move; None when the game is over
    payoffs    of the two seats, summing to zero: 1, -1 or 0, in Kuhn poker the chips won
    forfeited  the seat that forfeited, which costs `Game.max_loss`; None: neither did
    reason     why the game ended

    A seat that makes an illegal move is shown that and may try once more; the second in a row forfeits.
    """

    seats = 2

    def __init__(self, game: str, deal: int, full: bool = False) -> None:
        if game not in GAMES:
            raise unknown("game", game, GAMES)
        self.game, self.full, self.history = GAMES[game], full, list[tuple[int, str]]()
        self.payoffs, self.reason = (0.0, 0.0), ""
        self.forfeited: int | None = None
        self._random = PrivateRandom(deal, numpy=False)  # these engines draw from Python's alone
        self._illegal_move = ""  # the last one, until its seat has made a legal one
        self._observations = [0, 0]  # given to each seat so far
        with self._random:
            self.engine = self.game.make_env(_module(self.game.name))
            if self.game.deal:
                self.game.deal(self.engine, deal)
            self.engine.reset(num_players=2)
        self._first: int = self.engine.state.current_player_id
        self.turn: int | None = 0

    def player(self, seat: int) -> int:
        """The engine's number for a seat."""
        return self._first if seat == 0 else 1 - self._first

    @property
    def state(self) -> Mapping[str, Any]:
        """The engine's own state of the game."""
        return self.engine.state.game_state

    def observation(self, seat: int) -> str:
        """What a seat is shown before it moves: the opening the first time, what the opponent did, what may be done.

        In a compact form, or with `full` in the engine's words. A second call is a second observation.
        """
        is_first = not self._observations[seat]
        self._observations[seat] += 1
        if self.full:
            new = self.engine.state.observations[self.player(seat)]
            self.engine.state.observations[self.player(seat)] = []
            names = self.engine.state.role_mapping
            return ("" if is_first else "\n") + "\n".join(f"[{names.get(by, by)}] {text}" for by, text, _ in new) + "\n"
        if self._illegal_move:
            return f"\nnot allowed. {self.game.options(self, seat)}\n"
        last = next((text for by, text in reversed(self.history) if by != seat), "")
        return (self.game.opening(self, seat) if is_first else "\n") + self.game.update(self, seat, last)

    def moves(self, seat: int) -> list[str]:
        """The legal moves; some of them where there are endless ones (offers)."""
        return self.game.moves(self, seat)

    def move(self, text: str) -> None:
        """Play the move that the engine reads from a text. Raises BadValue when the game is over."""
        if self.turn is None:
            raise BadValue(f"game {self.game.name}: the game is over; no further move can be played")
        seat, state = self.turn, self.engine.state
        with self._random:
            done, _ = self.engine.step(text)
        self._illegal_move = "" if done or not state.error_count else text
        if not self._illegal_move:
            self.history.append((seat, text))
        if done:
            rewards, info = self.engine.close()
            loser = next((s for s in (0, 1) if info[self.player(s)]["invalid_move"]), None)
            if loser is not None:
                return self.forfeit(loser, f"{SEATS[loser]} made a move that is not allowed")
            self.turn = None
            self.payoffs = (
                self.game.payoffs(self)
                if self.game.payoffs
                else (float(rewards[self._first]), float(rewards[1 - self._first]))
            )
            self.reason = str(info[0]["reason"])
        else:
            self.turn = 0 if state.current_player_id == self._first else 1

    def forfeit(self, seat: int, reason: str) -> None:
        """End the game against a seat."""
        self.turn, self.forfeited, self.reason = None, seat, reason
        self.payoffs = (
            (-self.game.max_loss, self.game.max_loss) if seat == 0 else (self.game.max_loss, -self.game.max_loss)
        )

    def strategy(self, player: str, seat: int) -> dict[str, float]:
        """Move probabilities of a player without a model: `random`, or `expert` (see the games).

        Raises UnknownName for another player.
        """
        if player not in PLAYERS:
            raise unknown("player", player, (*PLAYERS, "a model role"))
        if player == "expert":
            return self.game.expert(self, seat)
        options = self.moves(seat)
        return dict.fromkeys(options, 1 / len(options))

    def sample_move(self, player: str, seat: int, u: float) -> str:
        """The move that a player without a model makes at a uniform draw `u`."""
        probabilities = self.strategy(player, seat)
        for text, p in probabilities.items():
            u -= p
            if u < 0:
                return text
        return next(reversed(probabilities))


@block
def match(*, full: bool = False) -> Callable[[Task], Awaitable[Match]]:
    """Opens the match of a task (tags game and deal), for the program `play`.

    full  observations in the engine's own words
    """

    @on_run_loop  # matches swap the state of Python's global generator, so they take turns
    async def begin(task: Task) -> Match:
        return Match(task.tags["game"], task.tags["deal"], full)

    return begin


def _module(name: str) -> Any:
    return optional(f"textarena.envs.{name}.env", "games", "games")
