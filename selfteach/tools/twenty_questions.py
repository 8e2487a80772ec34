"""Twenty questions over a table of objects: ask for properties, answered by yes, no or maybe, and name the object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from ..core.random_keys import generator
from ..core.task import Task
from .noted import NotedEnv

OBJECTS = (
    *("apple", "ball", "bell", "boat", "book", "coin", "cup", "drum"),
    *("fish", "kite", "lamp", "leaf", "rope", "shoe", "stone", "tree"),
)
PROPERTIES = ("alive", "big", "flat", "hard", "heavy", "loud", "red", "round")
YES, NO, MAYBE, WRONG, UNKNOWN = "yes", "no", "maybe", "wrong", "what"


@cache
def table(seed: int = 0) -> Mapping[str, frozenset[str]]:
    """Object -> its properties, drawn so that any two objects differ in two at least: one may stay unanswered."""
    draw, rows = generator(seed, "objects"), list[frozenset[str]]()
    while len(rows) < len(OBJECTS):
        row = frozenset(p for p in PROPERTIES if draw.random() < 0.5)
        if all(len(row ^ other) >= 2 for other in rows):
            rows.append(row)
    return dict(zip(OBJECTS, rows, strict=True))


@cache
def turns_needed(left: frozenset[str], asked: frozenset[str], seed: int = 0) -> int:
    """The fewest turns that are sure to name an object out of `left`, asking for what is not in `asked`.

    As many as there are objects where nothing is sure to.
    """
    if len(left) <= 1:
        return len(left)
    of, best = table(seed), len(OBJECTS)
    for p in PROPERTIES:
        yes = frozenset(x for x in left if p in of[x])
        if p not in asked and 0 < len(yes) < len(left):
            worst = max(turns_needed(half, asked | {p}, seed) for half in (yes, left - yes))
            best = min(best, 1 + worst)
    return best


class TwentyQuestions(NotedEnv):
    """One episode: `ask PROPERTY` is answered by yes, no, or, for one property, maybe; `guess OBJECT` ends it.

    The reward is 1 for the right guess. Tags of a task: object, unsure (the property that is answered by maybe) and
    table (the seed of the objects' properties).
    """

    max_turns = 8
    max_tokens = 6
    in_thread = False

    def reset(self, task: Task) -> str:
        """The prompt, the same for every object."""
        self.object, self.unsure, self.seed = task.tags["object"], task.tags["unsure"], task.tags.get("table", 0)
        self.left, self.asked = frozenset(OBJECTS), set[str]()
        self.begin()
        return "which object"

    def step(self, text: str) -> tuple[str, float, bool]:
        """Answer a question or a guess."""
        action, before = " ".join(text.split()), self.remaining()
        verb, _, noun = action.partition(" ")
        of, won, done = table(self.seed), False, False
        if verb == "ask" and noun in PROPERTIES:
            answer = MAYBE if noun == self.unsure else YES if noun in of[self.object] else NO
            if answer != MAYBE:
                self.left = frozenset(x for x in self.left if (noun in of[x]) == (answer == YES))
            self.asked.add(noun)
        elif verb == "guess" and noun in OBJECTS:
            won, done, answer = noun == self.object, True, YES if noun == self.object else WRONG
        else:
            answer = UNKNOWN
        progress = -before if done and not won else before - (0 if won else self.remaining())
        self.note(action, answer != UNKNOWN, progress)
        return answer, float(won), done

    def remaining(self) -> int:
        """The turns that the best questions need at most, for one who knows which property is not answered."""
        return turns_needed(self.left, frozenset(self.asked | {self.unsure}), self.seed)

    def actions(self) -> Sequence[str]:
        """All questions and guesses."""
        return [*(f"ask {p}" for p in PROPERTIES), *(f"guess {x}" for x in OBJECTS)]

    def expert(self) -> str:
        """The guess where one object is left, else a question that splits those that are left most evenly."""
        if len(self.left) == 1:
            return f"guess {next(iter(self.left))}"
        of = table(self.seed)

        def uneven(p: str) -> int:
            return abs(2 * sum(p in of[x] for x in self.left) - len(self.left))

        free = [p for p in PROPERTIES if p not in self.asked and uneven(p) < len(self.left)]
        return f"ask {min(free, key=uneven)}" if free else f"guess {min(self.left)}"
