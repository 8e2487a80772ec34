"""PettingZoo's classic games as matches: the board or the cards in words, legal moves in brackets."""

from __future__ import annotations

import pkgutil
import re
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import BadValue, describe, nearest
from ..core.extras import optional
from ..core.random_keys import key
from .private_random import PrivateRandom
from .text_match import MOST_MOVES, MOST_SEATS, TextMatch

SHOWN_MOVES = 40  # legal moves that are said one by one
Moves = dict[str, int]  # a legal move's name -> the engine's number
COLUMNS = "ABCDEFGHJKLMNOPQRST"  # of a Go board: without I
MARKS = ("X", "O")


class Wording(NamedTuple):
    """How a classic game reads. `agent` is the engine's number for a seat, from 0.

    rules     in a line, as (the bare engine, agent) -> text
    observe   (bare engine, agent) -> what it sees
    moves     (bare engine, agent, numbers of legal moves) -> their names
    max_loss  what a seat can lose at most, by the engine
    expert    (bare engine, agent, legal moves) -> the best by a rule; None: there is none
    """

    rules: Callable[[Any, int], str]
    observe: Callable[[Any, int], str]
    moves: Callable[[Any, int, Sequence[int]], Moves]
    max_loss: Callable[[Any], float] = lambda engine: 1.0
    expert: Callable[[Any, int, Moves], list[str]] | None = None
    is_zero_sum: bool = True


def _numbers(engine: Any, agent: int, legal: Sequence[int]) -> Moves:
    return {str(n): n for n in legal}


# ---- boards


def _squares(engine: Any) -> list[str]:
    """Tic-tac-toe's nine squares, which the engine counts by columns."""
    return [MARKS[int(s) - 1] if s else str(n) for n, s in enumerate(engine.board.squares)]


def _tictactoe(engine: Any, agent: int) -> str:
    squares = _squares(engine)
    return "\n".join(" ".join(squares[row::3]) for row in range(3))


def _connect_four(engine: Any, agent: int) -> str:
    rows = np.reshape(engine.board, (6, 7))
    drawn = "\n".join(" ".join("." if not c else MARKS[int(c) - 1] for c in row) for row in rows)
    return f"0 1 2 3 4 5 6\n{drawn}"


@cache
def _lines(rows: int, columns: int, length: int) -> tuple[tuple[int, ...], ...]:
    """All lines of a board in row-major order."""
    found = []
    for r in range(rows):
        for c in range(columns):
            for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
                line = [(r + dr * n, c + dc * n) for n in range(length)]
                if all(0 <= y < rows and 0 <= x < columns for y, x in line):
                    found.append(tuple(y * columns + x for y, x in line))
    return tuple(found)


def _wins(cells: Sequence[int], place: int, piece: int, lines: Sequence[Sequence[int]]) -> bool:
    """Whether a piece at a place completes a line."""
    return any(place in line and all(n == place or cells[n] == piece for n in line) for line in lines)


def win_or_block(
    cells: Sequence[int], places: Mapping[str, int], own: int, lines: Sequence[Sequence[int]]
) -> list[str]:
    """The moves that win at once; else those that stop the other from it; else all. Pieces are 1 and 2, 0 is free.

    >>> win_or_block([1, 1, 0, 2, 2, 0, 0, 0, 0], {"2": 2, "5": 5, "8": 8}, 2, [(0, 1, 2), (3, 4, 5), (6, 7, 8)])
    ['5']
    """
    for piece in (own, 3 - own):
        if found := [name for name, place in places.items() if _wins(cells, place, piece, lines)]:
            return found
    return list(places)


def _tictactoe_expert(engine: Any, agent: int, moves: Moves) -> list[str]:
    return win_or_block([int(s) for s in engine.board.squares], moves, agent + 1, _lines(3, 3, 3))


def _connect_four_expert(engine: Any, agent: int, moves: Moves) -> list[str]:
    cells = [int(s) for s in engine.board]
    lowest = {name: max(p for p in range(column, 42, 7) if not cells[p]) for name, column in moves.items()}
    return win_or_block(cells, lowest, agent + 1, _lines(6, 7, 4))


def _chess(engine: Any, agent: int) -> str:
    last = f"they played {engine.board.peek().uci()}. " if engine.board.move_stack else ""
    return f"{last}{engine.board.fen()}"


def _chess_moves(engine: Any, agent: int, legal: Sequence[int]) -> Moves:
    utils = optional("pettingzoo.classic.chess.chess_utils", "pettingzoo", "task pettingzoo")
    return {utils.action_to_move(engine.board, n, agent).uci(): n for n in legal}


def _go(engine: Any, agent: int) -> str:
    size, board = engine._N, engine._go.board
    rows = [
        f"{size - y:>2} " + " ".join({1: "X", -1: "O"}.get(int(c), ".") for c in row) for y, row in enumerate(board)
    ]
    return "\n".join([*rows, "   " + " ".join(COLUMNS[:size])])


def _go_moves(engine: Any, agent: int, legal: Sequence[int]) -> Moves:
    size = engine._N
    return {"pass" if n == size * size else f"{COLUMNS[n % size]}{size - n // size}": n for n in legal}


# ---- hands and cards


def _rps(engine: Any, agent: int) -> str:
    said = engine._moves[int(engine.observations[engine.possible_agents[agent]])].lower()
    last = "" if said == "none" else f" they said {said}."
    return f"round {engine.num_moves + 1} of {engine.max_cycles}.{last}"


def _rps_moves(engine: Any, agent: int, legal: Sequence[int]) -> Moves:
    return {engine._moves[n].lower(): n for n in legal}


def _poker(engine: Any, agent: int) -> str:
    """Cards by rank and suit; what the others did since this agent moved last."""
    seen = engine.env.get_state(agent)["raw_obs"]
    done = engine.env.action_recorder
    since = next((n for n in range(len(done), 0, -1) if done[n - 1][0] == agent), 0)
    players = len(engine.possible_agents)
    who = lambda n: "they" if players == 2 else f"player {(n - agent) % players}"  # noqa: E731
    others = "".join(f"{who(n)} {_poker_name(action)}. " for n, action in done[since:])
    hand, public = seen["hand"], seen["public_cards"] if "public_cards" in seen else seen["public_card"]
    cards = lambda given: " ".join(c[1] + c[0].lower() for c in ([given] if isinstance(given, str) else given or ()))  # noqa: E731
    chips = [int(c) for c in seen["all_chips"]]
    rest = " ".join(str(c) for n, c in enumerate(chips) if n != agent)
    return f"{others}hand {cards(hand)}. table {cards(public) or 'empty'}. chips in: you {chips[agent]}, others {rest}."


def _poker_name(action: Any) -> str:
    name = str(getattr(action, "name", action)).lower()
    return {"check_call": "call", "raise_half_pot": "half pot", "raise_pot": "pot", "all_in": "all in"}.get(name, name)


def _poker_moves(engine: Any, agent: int, legal: Sequence[int]) -> Moves:
    actions = list(engine.env.actions)
    return {_poker_name(actions[n]): n for n in legal}


def _hanabi(engine: Any, agent: int) -> str:
    return str(engine.hanabi_env.game_state.observation_string(agent)).strip()


def _hanabi_moves(engine: Any, agent: int, legal: Sequence[int]) -> Moves:
    state = engine.hanabi_env.game_state
    return {state.action_to_string(agent, n).strip("()").lower(): n for n in legal}


def _as(text: str, words: Sequence[str] = ("X", "O")) -> Callable[[Any, int], str]:
    return lambda engine, agent: f"{text}, you are {words[agent]}."


WORDINGS: Mapping[str, Wording] = {
    "tictactoe": Wording(_as("tic-tac-toe"), _tictactoe, _numbers, expert=_tictactoe_expert),
    "connect_four": Wording(_as("connect four"), _connect_four, _numbers, expert=_connect_four_expert),
    "chess": Wording(_as("chess", ("white", "black")), _chess, _chess_moves),
    "go": Wording(_as("go", ("X, black", "O, white")), _go, _go_moves),
    "rps": Wording(lambda e, a: "rock paper scissors.", _rps, _rps_moves, lambda e: float(e.max_cycles)),
    "leduc_holdem": Wording(lambda e, a: "leduc poker.", _poker, _poker_moves, lambda e: 7.0),
    "texas_holdem": Wording(lambda e, a: "texas hold'em with limits.", _poker, _poker_moves, lambda e: 25.0),
    "texas_holdem_no_limit": Wording(lambda e, a: "texas hold'em.", _poker, _poker_moves, lambda e: 100.0),
    "hanabi": Wording(
        lambda e, a: "hanabi: build the fireworks together, you see the others' cards.",
        _hanabi,
        _hanabi_moves,
        is_zero_sum=False,
    ),
}


@dataclass(frozen=True)
class PettingZooMaker:
    """Makes matches of a classic game. id: with its version, as PettingZoo has it: tictactoe_v3."""

    id: str
    options: Mapping[str, Any]
    max_moves: int = MOST_MOVES

    def __call__(self) -> PettingZooMatch:
        """A new match."""
        return PettingZooMatch(self)

    @cached_property
    def wording(self) -> Wording:
        """How the game reads. Raises BadValue for an id that PettingZoo's classic games do not have."""
        classic = optional("pettingzoo.classic", "pettingzoo", "task pettingzoo")
        known = [m.name for m in pkgutil.iter_modules(classic.__path__) if re.search(r"_v\d+$", m.name)]
        family = re.sub(r"_v\d+$", "", self.id)
        if self.id not in known or family not in WORDINGS:
            raise BadValue(f"no classic game of pettingzoo is called {self.id!r}; {nearest(self.id, known)}")
        return WORDINGS[family]

    def make(self) -> Any:
        """PettingZoo's own game, without wrappers. Raises BadValue for one that cannot be had."""
        assert self.wording  # the id is known
        module = optional(f"pettingzoo.classic.{self.id}", "pettingzoo", f"game {self.id}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the bounds of its spaces, which nobody reads
                engine = module.raw_env(**self.options)
        except Exception as error:
            given = ", ".join(f"{k}={v!r}" for k, v in self.options.items())
            raise BadValue(
                f"game {self.id}: cannot be made{' with ' * bool(given)}{given} ({describe(error, 200)})"
            ) from None
        if not 2 <= len(engine.possible_agents) <= MOST_SEATS:
            given = f"has {len(engine.possible_agents)} players, not 2 to {MOST_SEATS}"
            raise BadValue(f"game {self.id}: {given}; take options that give it so many")
        return engine


class PettingZooMatch(TextMatch):
    """A match of a classic game. A seat that makes an illegal move is told so and may try once more; the second in a
    row forfeits.

    Payoffs are the engine's rewards, summed. The seats are counted from the agent that moves first.
    """

    def __init__(self, maker: PettingZooMaker) -> None:
        super().__init__(maker.id, maker.max_moves)
        self.wording, self.random = maker.wording, PrivateRandom(0)
        with self.random:
            self.engine: Any = maker.make()
        self.seats = len(self.engine.possible_agents)
        self.is_zero_sum = self.wording.is_zero_sum
        self.max_loss = self.wording.max_loss(self.engine)
        self._first, self._illegal = 0, False

    def _begin(self, seed: int) -> None:
        self.random = PrivateRandom(key(seed, "pettingzoo"))
        with self._alone():
            self.engine.reset(seed=seed % 2**31)
        self._first = self._number(self.engine.agent_selection)
        self._advance()

    @contextmanager
    def _alone(self) -> Generator[None]:
        """While it is entered, what the engine shares with others of this process is its own: the global generators,
        and of Go the size of the board, which PettingZoo keeps in a module.
        """
        with self.random:
            if (set_size := getattr(self.engine, "_overwrite_go_global_variables", None)) is not None:
                set_size(board_size=self.engine._N)
            yield

    def _number(self, agent: str) -> int:
        return self.engine.possible_agents.index(agent)

    def _agent(self, seat: int) -> int:
        """The engine's number for a seat."""
        return (seat + self._first) % self.seats

    def _advance(self) -> None:
        """Let agents that are done step out, count what each was paid since it moved last, and find who is to move."""
        while self.engine.agents:
            agent = self.engine.agent_selection
            _, reward, terminated, truncated, _ = self.engine.last(observe=False)
            seat = (self._number(agent) - self._first) % self.seats
            self.payoffs[seat] += float(reward)
            if not (terminated or truncated):
                self.turn = seat
                return
            self.engine.step(None)
        self.turn, self.reason = None, "the game is over"

    def named_moves(self) -> Moves:
        """The legal moves by name, of the seat to move."""
        agent = self.engine.agent_selection
        seen = self.engine.observe(agent)
        if isinstance(seen, Mapping) and "action_mask" in seen:
            legal = [int(n) for n in np.flatnonzero(seen["action_mask"])]
        else:
            legal = list(range(int(self.engine.action_space(agent).n)))
        return self.wording.moves(self.engine, self._number(agent), legal)

    def _moves(self, seat: int) -> list[str]:
        return [f"[{name}]" for name in self.named_moves()]

    def expert_moves(self, seat: int) -> list[str]:
        """Those that win at once, or stop the other from it, where the wording has such a rule."""
        if self.wording.expert is None:
            return []
        return [f"[{name}]" for name in self.wording.expert(self.engine, self._agent(seat), self.named_moves())]

    def _news(self, seat: int) -> str:
        names = list(self.named_moves())
        options = " ".join(f"[{n}]" for n in names[:SHOWN_MOVES])
        more = f" ... ({len(names)} in all)" if len(names) > SHOWN_MOVES else ""
        if self._illegal:
            return f"not allowed. you may {options}{more}"
        agent = self._agent(seat)
        rules = "" if self._texts[seat] else self.wording.rules(self.engine, agent) + "\n"
        return f"{rules}{self.wording.observe(self.engine, agent)}\nyou may {options}{more}"

    def _carry_out(self, seat: int, text: str) -> None:
        action = read_move(text, self.named_moves())
        if action is None and self._illegal:
            return self.forfeit(seat, "two moves in a row that are not allowed")
        self._illegal = action is None
        if action is not None:
            with self._alone():
                self.engine.step(action)
            self._advance()


def read_move(text: str, moves: Moves) -> int | None:
    """The legal move that stands last in brackets; without brackets, what the whole text is. None: none.

    >>> read_move("I take [4].", {"4": 4}), read_move("4", {"4": 4}), read_move("[5] is taken, so 4", {"4": 4})
    (4, 4, None)
    """
    found = re.findall(r"\[([^\[\]]*)\]", text)
    said = " ".join((found[-1] if found else text).split()).lower()
    return {name.lower(): n for name, n in moves.items()}.get(said)
