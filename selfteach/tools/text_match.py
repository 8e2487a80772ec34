"""Matches of several players in words, on engines of other packages: what the program `play` plays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from ..core.blocks import block
from ..core.errors import BadValue, SelfteachError, describe, unknown
from ..core.task import Task
from ..core.user_code import on_run_loop
from .environment import observation_text

MOST_SEATS = 10
MOST_MOVES = 60  # of a match: an episode's limit is 64 turns


class Opponent(NamedTuple):
    """What a function that plays a seat is asked: all that the seat was shown, and the legal moves that are known."""

    text: str
    moves: Sequence[str]


class TextMatch:
    """A match between seats, of which 0 moves first. A class of an engine's own gives `_begin`, `_news`, `_moves` and
    `_carry_out`.

    turn       the seat to move; None when the match is over
    payoffs    of the seats so far
    forfeited  the seat that forfeited; None: none did
    reason     why the match ended
    max_loss   what a forfeit costs; in a zero-sum match the other seats share it, else they keep what they had

    Whatever the engine raises, and an observation that is no text, is SelfteachError that names the game.
    """

    seats = 2
    max_loss = 1.0
    is_zero_sum = True

    def __init__(self, name: str, max_moves: int = MOST_MOVES) -> None:
        self.name, self.max_moves, self.moved = name, max_moves, 0
        self.turn: int | None = 0
        self.forfeited: int | None = None
        self.reason = ""
        self.payoffs, self._texts = list[float](), list[str]()

    def begin(self, seed: int) -> None:
        """Begin the match of a seed."""
        self.payoffs, self._texts = [0.0] * self.seats, [""] * self.seats
        self._named("reset", self._begin, seed)

    def observation(self, seat: int) -> str:
        """What is new to a seat before it moves, up to a line's end. A second call is a second observation."""
        text = observation_text(
            f"game {self.name}", "the observation", self._named("the observation", self._news, seat)
        )
        if self._texts[seat]:
            text = "\n" + text
        self._texts[seat] += text
        return text

    def moves(self, seat: int) -> list[str]:
        """The legal moves of the seat to move; empty where the engine does not say them."""
        return self._named("the legal moves", self._moves, seat)

    @property
    def is_over(self) -> bool:
        """Whether nobody is to move."""
        return self.turn is None

    def move(self, text: str) -> None:
        """Play the move that a text names. Raises BadValue when the match is over."""
        if self.turn is None:
            raise BadValue(f"game {self.name}: the match is over; no further move can be played")
        self._texts[self.turn] += text
        self.moved += 1
        self._named("the move", self._carry_out, self.turn, text)
        if self.moved >= self.max_moves and not self.is_over:
            self.turn, self.reason = None, f"cut off after {self.moved} moves"

    def forfeit(self, seat: int, reason: str) -> None:
        """End the match against a seat."""
        self.turn, self.forfeited, self.reason = None, seat, reason
        if self.is_zero_sum:
            self.payoffs = [self.max_loss / (self.seats - 1)] * self.seats
        self.payoffs[seat] = -self.max_loss

    def shown(self, seat: int) -> str:
        """All that a seat was shown and said."""
        return self._texts[seat]

    def opponent(self, seat: int) -> Opponent:
        """What a function that plays a seat is asked now."""
        self.observation(seat)
        return Opponent(self.shown(seat), self.moves(seat))

    def sample_move(self, player: str, seat: int, u: float) -> str:
        """The move of a player without a model at a uniform draw `u`.

        `random` is uniform over the legal moves, `expert` over the best of these by a rule of the game, where it has
        one.

        Raises UnknownName for another player, BadValue where no legal move is known.
        """
        self.observation(seat)
        if player not in ("random", "expert"):
            raise unknown("player", player, ("random", "expert", "a model role"))
        options = self.expert_moves(seat) if player == "expert" else []
        move = _drawn(options, u) if options else self._named("the legal moves", self.random_move, seat, u)
        if move is None:
            raise BadValue(
                f"game {self.name}: no legal move can be read off its words, so nobody plays at random; take"
                " opponent=self, or opponent=FILE.py:function"
            )
        return move

    def random_move(self, seat: int, u: float) -> str | None:
        """One of the legal moves, uniformly; None where none is known."""
        options = self._moves(seat)
        return _drawn(options, u) if options else None

    def expert_moves(self, seat: int) -> list[str]:
        """The best legal moves by a rule of the game; none where there is no such rule."""
        return []

    def _begin(self, seed: int) -> None:
        raise NotImplementedError

    def _news(self, seat: int) -> str:
        raise NotImplementedError

    def _moves(self, seat: int) -> list[str]:
        raise NotImplementedError

    def _carry_out(self, seat: int, text: str) -> None:
        raise NotImplementedError

    def _named(self, what: str, fn: Callable[..., Any], *args: Any) -> Any:
        try:
            return fn(*args)
        except SelfteachError:
            raise
        except Exception as error:
            raise SelfteachError(f"game {self.name}: {what} raised {describe(error, 300)}") from error


def _drawn(options: Sequence[str], u: float) -> str:
    return options[min(int(u * len(options)), len(options) - 1)]


@block
def text_match(*, make: Callable[[], TextMatch] = lambda: TextMatch("")) -> Callable[[Task], Awaitable[TextMatch]]:
    """Opens the match of a task (tag seed), for the program `play`."""

    @on_run_loop  # engines lend the state of Python's global generator, so they take turns
    async def begin(task: Task) -> TextMatch:
        match = make()
        match.begin(int(task.tags["seed"]))
        return match

    return begin


@block
def opponent(*, play: Callable[[str, Sequence[str]], str] = lambda text, moves: moves[0], name: str = "") -> Any:
    """A function of a user's own that plays the other seats: (all that the seat was shown, legal moves) -> its move."""

    def answer(asked: Opponent) -> str:
        said = play(asked.text, list(asked.moves))
        if not isinstance(said, str):
            raise SelfteachError(f"opponent {name}: returned a {type(said).__name__} as its move, not text")
        return said

    return answer
