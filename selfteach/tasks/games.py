"""Two-player games on TextArena's engines: Kuhn poker, tic-tac-toe, simple negotiation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..core.address import generator, key
from ..core.errors import BadValue, unknown
from ..core.registry import task
from ..core.task import Source, Task
from ..reward.noted import noted
from ..tools.exploit import situations
from ..tools.games import GAMES, PLAYERS, SEATS, Match, match
from .options import least, share

WORDED = 2000  # demonstrations that the tokenizer sees
LONGEST = {"kuhn": 8, "tictactoe": 8, "negotiation": 24}  # tokens of a move, with room


@dataclass(frozen=True, eq=False)
class Deals:
    """Matches of some games, by their deals, and moves of theirs as demonstrations."""

    games: tuple[str, ...]
    noise: float = 0.5
    full: bool = False
    n_test: int = 200
    seed: int = 0

    def deal(self, kind: str, i: int) -> Task:
        """The task of a match. tags: game, category (the same), deal."""
        game = self.games[i % len(self.games)]
        return Task(
            f"{kind}/{i}", f"play {game}.\n", ("win",), tags={"game": game, "category": game, "deal": key(self.seed, "deal", kind, i) % 2**32}
        )

    def train(self, i: int) -> Task:
        """The i-th match to learn from."""
        return self.deal("train", i)

    @cached_property
    def test(self) -> tuple[Task, ...]:
        return tuple(self.deal("test", i) for i in range(self.n_test))

    def demo(self, i: int) -> Task:
        """The i-th demonstration: one move, after all that its seat saw and did before. tags: game, seat, before (all moves until then), kind,
        slip ("lot" for a move by lot).

        Both seats play as experts do, but for the share `noise` of moves by lot.
        """
        task, draw = self.deal("demo", i), generator(self.seed, "play", i)
        played = Match(task.tags["game"], task.tags["deal"], self.full)
        texts, found = ["", ""], list[tuple[str, str, dict[str, object]]]()
        while played.turn is not None:
            seat = played.turn
            player = PLAYERS[int(draw.random() >= self.noise)]
            texts[seat] += played.told(seat)
            move = played.chosen(player, seat, float(draw.random()))
            before = tuple(text for _, text in played.history)
            found.append((texts[seat], move, {"seat": SEATS[seat], "before": before, "slip": "lot" if player == "random" else ""}))
            texts[seat] += move
            played.move(move)
        prompt, move, more = found[int(draw.integers(len(found)))]
        return Task(task.id, prompt, task.answer, (move,), {**task.tags, "kind": "demo", **more})

    def words(self) -> Iterator[str]:
        """Text for the tokenizer: small numbers and a stretch of demonstrations."""
        yield " ".join(map(str, range(50)))
        for i in range(WORDED):
            item = self.demo(i)
            yield item.prompt + item.data[0]


@task
def games(games: tuple[str, ...] = ("kuhn",), noise: float = 0.5, full: bool = False, n_test: int = 200, seed: int = 0) -> Source:
    """Two-player zero-sum games by TextArena's rules, for the program `play`: with oneself, older selves, or players that need no model.

    games   which, in turns: kuhn (poker), tictactoe, negotiation
    noise   share of the demonstrated moves that are made by lot
    full    observations in the engine's own words, not in a compact form (long: for models that read)
    n_test  matches to test on; a game has few beginnings, so what is held out is how they go on
    seed    of everything drawn
    """
    knobs = dict(locals())
    for name in games:
        if name not in GAMES:
            raise unknown("game", name, GAMES)
    if not games:
        raise BadValue(f"task games: games must be one or more of {', '.join(GAMES)}")
    least("games", "n_test", n_test, 1)
    deals = Deals(tuple(games), share("games", "noise", noise), full, n_test, seed)
    Match(games[0], 0)  # says at once where the package is missing
    return Source(
        name="games",
        train=deals.train,
        test=deals.test,
        demos=deals.demo,
        words=deals.words,
        tools={"match": match(full=full), **({"situations": situations(full=full)} if "kuhn" in games else {})},
        defaults={
            "judge": noted(),
            "max_tokens": max(LONGEST[g] for g in games),
            "by": "game",
            "lr": 1e-4,
            "warm_steps": 300 if tuple(games) == ("kuhn",) else 1000,  # the others have more to show
            "warm_batch": 16,
            "warm_lr": 2e-3,
        },
        knobs=knobs,
        about={"games": list(games), "test matches": n_test},
    )
