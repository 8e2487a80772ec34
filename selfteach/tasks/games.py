"""Two-player games on TextArena's engines: Kuhn poker, tic-tac-toe, simple negotiation, Nim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..core.errors import BadValue
from ..core.random_keys import generator, key
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..reward.payoff import payoff_from_notes
from ..tools.exploit import situations
from ..tools.games import GAMES, PLAYERS, SEATS, Match, match
from .options import check_at_least, check_names, check_share

TOKENIZER_DEMOS = 2000  # demonstrations that the tokenizer sees
LONGEST = {"kuhn": 8, "tictactoe": 8, "negotiation": 24, "nim": 36}  # tokens of a move, with room


@dataclass(frozen=True, eq=False)
class GameTasks:
    """Matches of some games as tasks, and single moves of theirs as demonstrations."""

    games: tuple[str, ...]
    noise: float = 0.5
    thoughts: bool = False
    full: bool = False
    n_test: int = 200
    seed: int = 0

    def deal(self, kind: str, i: int) -> Task:
        """The task of a match; tags: game, category (the same), deal."""
        game = self.games[i % len(self.games)]
        return Task(
            f"{kind}/{i}",
            f"play {game}.\n",
            ("win",),
            tags={"game": game, "category": game, "deal": key(self.seed, "deal", kind, i) % 2**32},
        )

    def train(self, i: int) -> Task:
        """The i-th training match."""
        return self.deal("train", i)

    @cached_property
    def test(self) -> tuple[Task, ...]:
        """The test matches."""
        return tuple(self.deal("test", i) for i in range(self.n_test))

    def demo(self, i: int) -> Task:
        """The i-th demonstration: one move of a seat, after all that it observed and did before.

        Both seats play as experts do, but for the share `noise` of random moves. With `thoughts` an expert's move
        follows the thought that leads to it, and a random one follows none.

        tags  game, seat, before (all moves until then), kind, slip ("lot" for a random move, else "")
        """
        return self._shown("demo", i, generator(self.seed, "play", i), expert=False)

    def practice(self, i: int) -> Task:
        """The i-th demonstration of what comes before them: what an expert would do in a match like theirs.

        Tags as those of a demonstration; slip "".
        """
        return self._shown("practice", i, generator(self.seed, "practise", i), expert=True)

    def _shown(self, kind: str, i: int, draw: np.random.Generator, expert: bool) -> Task:
        """A move of a match, or with `expert` what an expert would do in its place."""
        task = self.deal(kind, i)
        played = Match(task.tags["game"], task.tags["deal"], self.full)
        texts, moves = ["", ""], list[tuple[str, str, dict[str, object]]]()
        while played.turn is not None:
            seat = played.turn
            player = PLAYERS[int(draw.random() >= self.noise)]
            texts[seat] += played.observation(seat)
            move = self._said(played, player, seat, float(draw.random()))
            shown = self._said(played, "expert", seat, float(draw.random())) if expert else move
            before = tuple(text for _, text in played.history)
            slip = "lot" if player == "random" and not expert else ""
            moves.append((texts[seat], shown, {"seat": SEATS[seat], "before": before, "slip": slip}))
            texts[seat] += move
            played.move(move)
        prompt, move, tags = moves[int(draw.integers(len(moves)))]
        return Task(task.id, prompt, task.answer, (move,), {**task.tags, "kind": kind, **tags})

    def _said(self, played: Match, player: str, seat: int, u: float) -> str:
        """A player's move, after its thought where it thinks."""
        move = played.sample_move(player, seat, u)
        if self.thoughts and player == "expert" and played.game.thought:
            return f"{played.game.thought(played, seat)} {move}"
        return move

    def words(self) -> Iterator[str]:
        """Text for the tokenizer: small numbers and a stretch of demonstrations."""
        yield " ".join(map(str, range(50)))
        for i in range(TOKENIZER_DEMOS):
            item = self.demo(i)
            yield item.prompt + item.data[0]


@task
def games(
    games: tuple[str, ...] = ("kuhn",),
    noise: float = 0.5,
    thoughts: bool = False,
    full: bool = False,
    n_test: int = 200,
    seed: int = 0,
) -> TaskSource:
    """Two-player zero-sum games on TextArena's engines, for the program `play`.

    games   which, in turns: kuhn (poker), tictactoe, negotiation, nim
    noise   share of the demonstrated moves that are random
    thoughts  whether an expert's demonstrated move follows the thought that leads to it (nim)
    full    observations in the engine's own words, not in a compact form (long: for models that read)
    n_test  test matches; a game has few deals, so what is held out is how matches go on
    seed    of every random draw
    """
    task_options = dict(locals())
    if not check_names("games", "games", games, GAMES, "game"):
        raise BadValue(f"task games: games must be one or more of {', '.join(GAMES)}")
    check_at_least("games", "n_test", n_test, 1)
    matches = GameTasks(tuple(games), check_share("games", "noise", noise), thoughts, full, n_test, seed)
    Match(games[0], 0)  # raises at once where the package is missing
    return TaskSource(
        name="games",
        train=matches.train,
        test=matches.test,
        demos=matches.demo,
        practice=matches.practice,
        words=matches.words,
        tags=("<think>", "</think>") if thoughts else (),
        tools={"match": match(full=full), **({"situations": situations(full=full)} if "kuhn" in games else {})},
        defaults={
            "judge": payoff_from_notes(),
            "max_tokens": max(LONGEST[g] for g in games),
            "by": "game",
            "lr": 1e-4,
            "warm_steps": 300 if tuple(games) == ("kuhn",) else 1000,  # the others have more positions
            "warm_batch": 16,
            "warm_lr": 2e-3,
        },
        task_options=task_options,
        about={"games": list(games), "test matches": n_test},
    )
