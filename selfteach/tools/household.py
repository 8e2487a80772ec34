"""A household in words: rooms, closed containers, a key, and one thing that is to be brought somewhere, maybe treated.

What a container holds is seen once it is open, and what is in a room once one is there. Everything is decided by the
task's tags, so that an episode can be replayed; the remaining length of the shortest plan is known at every turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from ..core.random_keys import generator, key, uniform_at
from ..core.task import Task
from .noted import NotedEnv

ROOMS = ("kitchen", "bath", "hall")
CONTAINERS = ("drawer", "box", "chest")
THINGS = ("cup", "fork", "apple", "sock", "coin", "book")
TREATMENTS = {"heat": "kitchen", "wash": "bath", "dry": "hall"}  # and the room in which it can be done
THOUGHTS = ("plan", "explore", "reflect", "monitor")  # what a turn may begin with: the kind of thought behind it
KEY, REFUSED, LOCKED, QUIT = "key", "no", "locked", "quit"


@dataclass(frozen=True)
class World:
    """A household and its goal: `thing`, treated (or not: ""), is to be in `target`.

    room    container -> the room that it is in; inside: container -> what it holds at first
    locked  a container that opens only to who has the key; "": none
    """

    thing: str
    treatment: str
    target: str
    room: Mapping[str, str]
    inside: Mapping[str, tuple[str, ...]]
    locked: str
    start: str

    @cached_property
    def in_room(self) -> dict[str, list[str]]:
        """Room -> the containers in it."""
        return {room: [c for c in CONTAINERS if self.room[c] == room] for room in ROOMS}

    @property
    def goal(self) -> str:
        """The goal in words."""
        return " ".join(filter(None, ("goal", self.treatment, self.thing, "in", self.target)))

    @staticmethod
    def draw(draw: np.random.Generator, thing: str, treatment: str, target: str, locked: float = 0.25) -> World:
        """A random household for a goal. locked: chance that the thing's container, or the target, is locked."""
        source, *others = draw.permutation([c for c in CONTAINERS if c != target]).tolist()
        lock = ""
        if draw.random() < locked:
            lock = (source, target)[int(draw.integers(2))]
        inside: dict[str, list[str]] = {c: [] for c in CONTAINERS}
        inside[source].append(thing)
        inside[str(draw.choice(others))].append(KEY)
        rest = [x for x in THINGS if x != thing]
        inside[str(draw.choice(CONTAINERS))].append(str(draw.choice(rest)))
        room = {c: str(draw.choice(ROOMS)) for c in CONTAINERS}
        contents = {c: tuple(sorted(inside[c])) for c in CONTAINERS}
        return World(thing, treatment, target, room, contents, lock, str(draw.choice(ROOMS)))


class Household(NotedEnv):
    """One episode of a household. A turn is an action, after the kind of its thought where it says one.

        go ROOM     open CONTAINER    take THING    heat, wash, dry (all that is carried)
        put CONTAINER (all that is carried but the key)               look            quit

    What cannot be done is answered by `no`, a container without its key by `locked`; `quit` ends the episode. The
    reward is 1 at the turn that reaches the goal and 0 before. Tags of a task: seed, thing, treatment, target, and
    maybe locked and slips (the chance that an action fails although it could be done; it is the same for all episodes
    of a task, by turn and action).
    """

    max_turns = 12
    max_tokens = 8
    in_thread = False

    def reset(self, task: Task) -> str:
        """The goal, and what is seen at first."""
        tags = task.tags
        self.world = World.draw(
            generator(tags["seed"], "household"),
            tags["thing"],
            tags["treatment"],
            tags["target"],
            tags.get("locked", 0.25),
        )
        self.seed, self.slips = tags["seed"], float(tags.get("slips", 0.0))
        self.room = self.world.start
        self.inside = {c: list(held) for c, held in self.world.inside.items()}
        self.open = set[str]()
        self.carried = list[str]()
        self.treated = ""  # the last treatment of the thing
        self.begin()
        self.is_done = False
        self.visited, self.shut = {self.room}, set[str]()
        self.left = self.remaining()
        return f"{self.world.goal}\n{self.sight()}"

    def sight(self) -> str:
        """What is seen in the room."""
        return " ".join(["in", self.room, "see", *(self.here() or ["nothing"])])

    def here(self) -> list[str]:
        """The containers of the room."""
        return self.world.in_room[self.room]

    def step(self, text: str) -> tuple[str, float, bool]:
        """Carry out an action; see the class."""
        action, before = action_of(text), self.left
        answer = self.refusal(action)
        is_slip = self.slips > 0 and uniform_at(key(self.seed, "slip", len(self.said), action), 0) < self.slips
        executed = answer is None and not is_slip
        if answer == LOCKED:
            self.shut.add(action.partition(" ")[2])
        observation = self._carry_out(action) if executed else answer or REFUSED
        self.left = self.remaining() if executed else before
        self.note(action, executed, before - self.left if action != QUIT else -before)
        won = not self.left
        self.is_done = won or action == QUIT
        return observation, float(won), self.is_done

    def refusal(self, action: str) -> str | None:
        """What an action is refused with; None where it can be carried out."""
        verb, _, noun = action.partition(" ")
        if verb == "go":
            possible = noun in ROOMS and noun != self.room
        elif verb == "open":
            possible = noun in self.here() and noun not in self.open
            if possible and noun == self.world.locked and KEY not in self.carried:
                return LOCKED
        elif verb == "take":
            possible = any(noun in self.inside[c] for c in self.here() if c in self.open)
        elif verb == "put":
            possible = noun in self.here() and noun in self.open and self._has_a_thing()
        elif verb in TREATMENTS:
            possible = not noun and self.room == TREATMENTS[verb] and self._has_a_thing()
        else:
            possible = action in ("look", QUIT)
        return None if possible else REFUSED

    def _has_a_thing(self) -> bool:
        return any(x != KEY for x in self.carried)

    def _carry_out(self, action: str) -> str:
        verb, _, noun = action.partition(" ")
        if verb == "go":
            self.room = noun
            self.visited.add(noun)
        if verb in ("go", "look"):
            return self.sight()
        if verb == "open":
            self.open.add(noun)
            return " ".join(["in", noun, *(self.inside[noun] or ["nothing"])])
        if verb == "take":
            holder = next(c for c in self.here() if c in self.open and noun in self.inside[c])
            self.inside[holder].remove(noun)
            self.carried.append(noun)
            return f"have {noun}"
        if verb in TREATMENTS:
            if self.world.thing in self.carried:
                self.treated = verb
            return "done"
        if verb == "put":
            self.inside[noun] += [x for x in self.carried if x != KEY]
            self.carried = [x for x in self.carried if x == KEY]
            return "done"
        return "bye"

    def remaining(self) -> int:
        """The length of the shortest plan from here, for one who knows where everything is; 0 at the goal.

        What is left to do is a chain: the thing's container, the treatment, the target, where the key comes somewhere
        before the container that it opens. Every order is tried; what differs between orders is how often the room
        changes, for all rooms are next to each other.
        """
        w = self.world
        holder = next((c for c, held in self.inside.items() if w.thing in held), "")
        is_treated = w.treatment in ("", self.treated)
        if holder == w.target and is_treated:
            return 0
        actions, chain, lock_at = 1, list[str](), -1  # 1: the last action, to put it there
        if holder:
            actions += 1 + (holder not in self.open)
            if holder == w.locked and holder not in self.open:
                lock_at = len(chain)
            chain.append(w.room[holder])
        if not is_treated:
            actions += 1
            chain.append(TREATMENTS[w.treatment])
        actions += w.target not in self.open and w.target != holder
        if w.target == w.locked and w.target not in self.open and lock_at < 0:
            lock_at = len(chain)
        chain.append(w.room[w.target])
        orders = [chain]
        if lock_at >= 0 and KEY not in self.carried:
            keeper = next(c for c, held in self.inside.items() if KEY in held)
            if keeper == holder:  # both are taken from there
                actions += 1
            else:
                actions += 1 + (keeper not in self.open)
                orders = [[*chain[:at], w.room[keeper], *chain[at:]] for at in range(lock_at + 1)]
        return actions + min(sum(a != b for a, b in pairwise([self.room, *order])) for order in orders)

    def actions(self) -> Sequence[str]:
        """All that can be carried out now, but to quit."""
        named = [f"{verb} {c}" for verb in ("open", "put") for c in CONTAINERS]
        all_of_them = [*(f"go {r}" for r in ROOMS), *named, *(f"take {x}" for x in (*THINGS, KEY)), *TREATMENTS, "look"]
        return [a for a in all_of_them if self.refusal(a) is None]

    def futile(self) -> list[str]:
        """Actions that one could take to be sensible and that are refused now."""
        named = [f"{verb} {c}" for verb in ("open", "put") for c in CONTAINERS]
        tried = [*named, f"take {self.world.thing}", *TREATMENTS, f"go {self.room}"]
        return [a for a in tried if self.refusal(a) is not None]

    def expert(self) -> str:
        """What one does who knows the rules and has only seen what the episode has shown."""
        w = self.world
        wanted = w.thing if w.thing not in self.carried else ""
        if not wanted and w.treatment not in ("", self.treated):
            room = TREATMENTS[w.treatment]
            return w.treatment if self.room == room else f"go {room}"
        if not wanted:
            if w.room[w.target] not in self.visited:
                return self._go_on()
            if w.target not in self.shut or KEY in self.carried:
                if self.room != w.room[w.target]:
                    return f"go {w.room[w.target]}"
                return f"put {w.target}" if w.target in self.open else f"open {w.target}"
            wanted = KEY
        needs_key = bool(self.shut - self.open) and KEY not in self.carried
        for x in (wanted, KEY) if needs_key else (wanted,):
            holder = next((c for c in self.open if x in self.inside[c]), "")
            if holder:
                return f"take {x}" if w.room[holder] == self.room else f"go {w.room[holder]}"
        return self._go_on()

    def _go_on(self) -> str:
        """Search: open what is closed here, then elsewhere where one has been, then where one has not."""
        closed = [c for c in CONTAINERS if self.world.room[c] in self.visited and c not in self.open]
        closed = [c for c in closed if c not in self.shut or KEY in self.carried]
        for c in closed:
            if self.world.room[c] == self.room:
                return f"open {c}"
        unvisited = [r for r in ROOMS if r not in self.visited]
        if closed:
            return f"go {self.world.room[closed[0]]}"
        return f"go {unvisited[0]}" if unvisited else "look"


def action_of(text: str) -> str:
    """A turn without the kind of its thought.

    >>> action_of("explore open box"), action_of("open box"), action_of("plan")
    ('open box', 'open box', '')
    """
    words = text.split()
    return " ".join(words[1:] if words and words[0] in THOUGHTS else words)
