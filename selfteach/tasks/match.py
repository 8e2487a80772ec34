"""Matches of several players as tasks: whom the policy plays against, single moves as demonstrations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

from ..core.errors import BadValue, SelfteachError, unknown
from ..core.function_source import user_function
from ..core.random_keys import generator, key
from ..core.task import Task, TaskSource
from ..reward.payoff import payoff_from_notes
from ..rollout.play import SCRIPT, play
from ..tools.text_match import MOST_MOVES, TextMatch, opponent, text_match
from .moves import Move, demonstrated
from .options import check_at_least, check_share

TOKENIZER_MATCHES = 50  # that the tokenizer sees


@dataclass(frozen=True, eq=False)
class MatchTasks:
    """Matches of a game as tasks, and single moves of theirs as demonstrations."""

    make: Callable[[], TextMatch]
    name: str
    noise: float = 0.5
    n_test: int = 100
    seed: int = 0

    def match(self, kind: str, i: int) -> Task:
        """The task of a match; tags: game, category (the same), seed (even in training, odd in the test)."""
        seed = key(self.seed, "match", kind, i) % 2**31 // 2 * 2 + (kind == "test")
        tags = {"game": self.name, "category": self.name, "seed": seed}
        return Task(f"{kind}/{i}", f"play {self.name}.\n", ("win",), tags=tags)

    def train(self, i: int) -> Task:
        """The i-th training match."""
        return self.match("train", i)

    @cached_property
    def test(self) -> tuple[Task, ...]:
        """The test matches."""
        return tuple(self.match("test", i) for i in range(self.n_test))

    def opened(self, task: Task) -> TextMatch:
        """The match of a task, begun."""
        match = self.make()
        match.begin(task.tags["seed"])
        return match

    @cached_property
    def played(self) -> Callable[[int], tuple[Move, ...]]:
        """The moves of the n-th demonstrated match."""
        return lru_cache(maxsize=4096)(self._play)

    def _play(self, n: int) -> tuple[Move, ...]:
        draw, match, moves = generator(self.seed, "play", n), self.opened(self.match("demo", n)), list[Move]()
        while (seat := match.turn) is not None:
            player = "random" if draw.random() < self.noise else "expert"
            is_random = player == "random" or not match.expert_moves(seat)
            said = match.sample_move(player, seat, float(draw.random()))
            moves.append(Move(match.shown(seat), said, is_random))
            match.move(said)
        return tuple(moves)

    def demo(self, i: int) -> Task:
        """The i-th demonstration: one move of a seat, after all that it was shown and said before.

        Moves are by the rule of the game where it has one (`expert`), but for the share `noise` of random ones.
        """
        return demonstrated(partial(self.match, "demo"), self.played, self.seed, i)

    def words(self) -> Iterator[str]:
        """Text for the tokenizer: small numbers and some matches, or of these what is shown first."""
        yield " ".join(map(str, range(50)))
        for n in range(TOKENIZER_MATCHES):
            if self.has_demos:
                for move in self.played(n)[-2:]:  # of two seats
                    yield move.before + move.said
            else:
                match = self.opened(self.match("demo", n))
                yield match.observation(match.turn or 0)

    @cached_property
    def why_no_demos(self) -> str:
        """Why no demonstration can be made: a legal move is not known. "" where they can."""
        try:
            self.played(0)
        except BadValue as error:
            return str(error)
        return ""

    @property
    def has_demos(self) -> bool:
        """Whether demonstrations can be made."""
        return not self.why_no_demos


def opponent_function(word: str) -> Callable[[str, Sequence[str]], str]:
    """The function of a word FILE.py:NAME that plays the other seats. Raises BadValue where there is none."""
    fn, name = user_function(word, "opponent"), word.rpartition(":")[2]
    try:
        inspect.signature(fn).bind("", ())
    except TypeError:
        raise BadValue(
            f"opponent {word}: cannot be called with (text, moves); write def {name}(text, moves), which returns a move"
        ) from None
    return fn


def match_source(
    task_name: str,
    make: Callable[[], TextMatch],
    name: str,
    task_options: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> TaskSource:
    """The source of a game's matches: tried once, played by `play`, judged by the payoff.

    task_options  those of the task's function; opponent, n_test, noise and seed are read here

    A match against itself is measured against the random player, since its payoffs sum to the same however it plays.

    Raises BadValue for an option out of range, an opponent that there is not, and a game that fails as it begins.
    """
    against, files, tools = task_options["opponent"], (), {"match": text_match(make=make)}
    if ":" in against or against.endswith(".py"):
        function = opponent_function(against)
        tools["opponent"] = opponent(play=function, name=against)
        file, against = inspect.getsourcefile(function), SCRIPT
        files = (file,) if file else ()
    tasks = MatchTasks(
        make,
        name,
        check_share(task_name, "noise", task_options["noise"]),
        check_at_least(task_name, "n_test", task_options["n_test"], 1),
        task_options["seed"],
    )
    try:
        first = tasks.opened(tasks.train(0))
        has_expert = bool(first.expert_moves(0))
        first.observation(first.turn or 0)
        has_demos = tasks.has_demos
    except SelfteachError as error:
        raise BadValue(str(error)) from None
    known = ["self", "random"] if has_demos else ["self"]
    known += ["expert"] if has_expert else []
    if against not in (*known, SCRIPT):
        if against == "random":
            raise BadValue(tasks.why_no_demos)
        raise unknown("opponent", against, (*known, "FILE.py:function"))
    second = "policy" if against == "self" else against
    measured = "random" if against == "self" and has_demos else second
    return TaskSource(
        name=task_name,
        train=tasks.train,
        test=tasks.test,
        demos=tasks.demo if has_demos else None,
        words=tasks.words,
        tools=tools,
        program=play(second=second, rotate=second != "policy"),
        decode={"main": play(second=measured, rotate=True)} if measured != second else {},
        defaults={
            "judge": payoff_from_notes(parts=("success", "forfeit")),
            "lr": 3e-4,
            "warm_steps": 300,
            "warm_batch": 16,
            **defaults,
        },
        task_options=task_options,
        about={
            "game": name,
            "players": first.seats,
            "opponent": task_options["opponent"],
            "test matches": tasks.n_test,
        },
        files=files,
    )


def check_moves(task_name: str, moves: int) -> int:
    """The most moves of a match: at most 60, an episode's limit. Raises BadValue."""
    if check_at_least(task_name, "max_turns", moves, 1) > MOST_MOVES:
        raise BadValue(f"task {task_name}: max_turns must be at most {MOST_MOVES}, not {moves}")
    return moves
