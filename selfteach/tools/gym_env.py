"""Gymnasium's discrete and text environments, with actions and observations in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..core.env import Env
from ..core.errors import BadValue, describe, nearest
from ..core.extras import optional
from ..core.task import Task

DISCOUNT = 0.99
SWEEPS = 1000  # of value iteration, at most


class Wording(NamedTuple):
    """How one of Gymnasium's environments reads: its rules, its actions, and an observation as text.

    observe  (the environment without wrappers, its observation) -> text
    expert   (that, observation) -> an action; None: from its transition table, where it has one
    ends     an episode that ends by itself went well, whatever its last reward
    """

    rules: str
    actions: tuple[str, ...]
    observe: Callable[[Any, Any], str]
    expert: Callable[[Any, Any], int] | None = None
    ends: bool = False


def _lake(env: Any, state: Any) -> str:
    rows, columns = env.desc.shape
    row, column = divmod(int(state), columns)
    kinds = {b"H": "hole", b"G": "goal"}
    sides = []
    for side, r, c in (
        ("left", row, column - 1),
        ("down", row + 1, column),
        ("right", row, column + 1),
        ("up", row - 1, column),
    ):
        inside = 0 <= r < rows and 0 <= c < columns
        sides.append(f"{side} {kinds.get(env.desc[r, c], 'ice') if inside else 'edge'}")
    goals = np.argwhere(env.desc == b"G")
    goal = f" goal at row {goals[0][0]} column {goals[0][1]}." if len(goals) else ""
    return f"row {row} column {column}.{goal} {', '.join(sides)}."


def _taxi(env: Any, state: Any) -> str:
    row, column, passenger, target = (int(n) for n in env.decode(int(state)))
    names = ("red", "green", "yellow", "blue")
    place = lambda n: f"{names[n]}, row {env.locs[n][0]} column {env.locs[n][1]}"  # noqa: E731
    rider = "in the taxi" if passenger == 4 else f"at {place(passenger)}"
    mask = env.action_mask(int(state))
    ways = [name for name, free in zip(TAXI_ACTIONS[:4], mask, strict=False) if free]
    return f"taxi at row {row} column {column}. passenger {rider}. to {place(target)}. free: {', '.join(ways)}."


def _cliff(env: Any, state: Any) -> str:
    row, column = divmod(int(state), 12)
    return f"row {row} column {column}. goal at row 3 column 11. cliff in row 3, columns 1 to 10."


def _blackjack(env: Any, state: Any) -> str:
    total, dealer, ace = (int(n) for n in state)
    return f"your sum is {total}, {'a' if ace else 'no'} usable ace. the dealer shows {dealer}."


TAXI_ACTIONS = ("south", "north", "east", "west", "pickup", "dropoff")
WORDINGS: Mapping[str, Wording] = {
    "FrozenLake": Wording("cross the ice to the goal, and fall into no hole.", ("left", "down", "right", "up"), _lake),
    "Taxi": Wording("fetch the passenger and bring them to their place.", TAXI_ACTIONS, _taxi),
    "CliffWalking": Wording(
        "walk to the goal, and not off the cliff.", ("up", "right", "down", "left"), _cliff, ends=True
    ),
    "Blackjack": Wording(
        "come near 21, not above it, and nearer than the dealer.",
        ("stick", "hit"),
        _blackjack,
        lambda env, state: int(state[0] < 17),
    ),
}


@dataclass
class GymMaker:
    """Makes the environments of one id, and keeps those that were closed for the next episodes.

    wording  how it reads; policy: the best action of each state, where it has a transition table
    """

    id: str
    options: Mapping[str, Any]
    extra: str = "gym"
    wrap: type[GymEnv] | None = None
    free: list[Any] = field(default_factory=list[Any])
    policy: np.ndarray | None = None

    def __call__(self) -> GymEnv:
        """A new episode's environment."""
        return (self.wrap or GymEnv)(self)

    def engine(self) -> Any:
        """Gymnasium's own environment, made anew or one that was closed."""
        try:
            return self.free.pop()
        except IndexError:
            return self.make()

    def make(self) -> Any:
        """Gymnasium's own environment. Raises BadValue for an unknown id and for options that it does not take."""
        gymnasium = optional("gymnasium", self.extra, f"task {self.extra}")
        try:
            return gymnasium.make(self.id, **self.options)
        except gymnasium.error.UnregisteredEnv:
            raise BadValue(
                f"no environment of gymnasium is called {self.id!r}; {nearest(self.id, gymnasium.registry)}"
            ) from None
        except Exception as error:
            given = ", ".join(f"{k}={v!r}" for k, v in self.options.items())
            raise BadValue(
                f"environment {self.id}: cannot be made{' with ' * bool(given)}{given} ({describe(error, 200)})"
            ) from None


class GymEnv(Env):
    """One episode in an environment of Gymnasium whose actions and observations are discrete, or text."""

    def __init__(self, maker: GymMaker) -> None:
        self.maker, self.engine = maker, maker.engine()
        self.bare = self.engine.unwrapped
        family = maker.id.rpartition("/")[2].partition("-")[0]
        self.wording = next((w for name, w in WORDINGS.items() if family.startswith(name)), None)
        self.observed: Any = None
        self.terminated = False

    def reset(self, task: Task) -> str:
        """Begin with the task's seed; the rules, then what is observed."""
        self.observed, _ = self.engine.reset(seed=int(task.tags["seed"]))
        said = f" say {either(self.actions())}." if self.actions() else ""
        return f"{self.rules()}{said}\n{self.observe()}"

    def step(self, text: str) -> tuple[str, float, bool]:
        """Take the action that a text names: it alone, or the last one in it. One without any is shown that, and costs
        a turn.
        """
        action = self.read(text)
        if action is None:
            return f"that is no action. say {either(self.actions())}.", 0.0, False
        self.observed, reward, terminated, truncated, _ = self.engine.step(action)
        self.terminated = bool(terminated)
        return self.observe(), float(reward), bool(terminated or truncated)

    def close(self) -> None:
        """Leave the engine to another episode."""
        self.maker.free.append(self.engine)

    def rules(self) -> str:
        """What it is about, in a line."""
        return self.wording.rules if self.wording else f"{self.maker.id}."

    def observe(self) -> str:
        """What is observed, as text."""
        if self.wording:
            return self.wording.observe(self.bare, self.observed)
        return flat(self.observed)

    def actions(self) -> Sequence[str]:
        """The names of its actions, or their numbers; none where an action is text."""
        if self.wording:
            return self.wording.actions
        space = self.engine.action_space
        return [str(int(space.start) + n) for n in range(int(space.n))] if hasattr(space, "n") else ()

    def read(self, text: str) -> Any:
        """The action that a text names; None: none."""
        names = list(self.actions())
        if not names:
            return text
        found = last_word(text, names)
        return None if found is None else names.index(found) + int(getattr(self.engine.action_space, "start", 0))

    def expert(self) -> str | None:
        """The best action: by the wording's own rule, or by value iteration where there is a transition table."""
        if self.wording and self.wording.expert:
            return self.actions()[self.wording.expert(self.bare, self.observed)]
        if not hasattr(self.bare, "P"):
            return None
        if self.maker.policy is None:
            self.maker.policy = best_actions(self.bare.P)
        return self.actions()[int(self.maker.policy[int(self.observed)])]

    def success(self, rewards: Sequence[float]) -> bool:
        """It ended by itself, with a reward above 0 or as its wording says."""
        return self.terminated and (rewards[-1] > 0 or bool(self.wording and self.wording.ends))


def best_actions(transitions: Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]) -> np.ndarray:
    """i64[states]: the best action of each state by value iteration (Bellman 1957), discounted by 0.99.

    transitions: state -> action -> (probability, next state, reward, whether it ends) of each outcome.

    >>> best_actions({0: {0: [(1.0, 0, 0.0, False)], 1: [(1.0, 1, 1.0, True)]}, 1: {0: [(1.0, 1, 0.0, True)]}})
    array([1, 0])
    """
    rows = [
        (s, a, p, to, reward, not ends)
        for s, own in transitions.items()
        for a, outcomes in own.items()
        for p, to, reward, ends in outcomes
    ]
    s, a, p, to, reward, goes_on = (np.array(column) for column in zip(*rows, strict=True))
    states, actions = max(transitions) + 1, max(int(n) for n in a) + 1
    value, q = np.zeros(states), np.zeros((states, actions))
    for _ in range(SWEEPS):
        q = np.full((states, actions), -np.inf)
        q[s, a] = 0.0
        np.add.at(q, (s, a), p * (reward + DISCOUNT * goes_on * value[to]))
        new = q.max(axis=1)
        if np.abs(new - value).max() < 1e-9:
            break
        value = new
    return q.argmax(axis=1)


def check_spaces(engine: Any, name: str) -> None:
    """Check that an environment's actions and observations are discrete or text. Raises BadValue."""
    spaces = optional("gymnasium.spaces", "gym", "task gym")
    plain = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Text)

    def is_plain(space: Any) -> bool:
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else getattr(space, "spaces", None)
        return all(map(is_plain, inner)) if inner is not None else isinstance(space, plain)

    if not is_plain(engine.observation_space):
        raise BadValue(
            f"environment {name}: its observations are {engine.observation_space}, neither discrete nor text; write a"
            " class Env that puts them into words (docs/environments.md)"
        )
    if not isinstance(engine.action_space, spaces.Discrete | spaces.Text):
        raise BadValue(
            f"environment {name}: its actions are {engine.action_space}, neither Discrete nor Text; write a class Env"
            " that reads them (docs/environments.md)"
        )


def flat(value: Any) -> str:
    """A discrete observation as text: numbers, `name value` of a mapping; text as it is."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ". ".join(f"{name} {flat(one)}" for name, one in value.items())
    if isinstance(value, tuple | list):
        return ", ".join(flat(one) for one in value)
    return " ".join(str(int(n)) for n in np.ravel(value))


def last_word(text: str, names: Sequence[str]) -> str | None:
    """The one of `names` that a text is, or the one that it mentions last; None where it mentions none.

    >>> last_word("not left, I go up.", ["left", "up"]), last_word("42", ["4"])
    ('up', None)
    """
    lower = text.strip().lower()
    if lower in names:
        return lower
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    found = re.findall(rf"(?<!\w)(?:{pattern})(?!\w)", lower)
    return found[-1] if found else None


def either(names: Sequence[str]) -> str:
    """Names in words: `a, b or c`; of many the first and the last."""
    if len(names) > 12:
        return f"{names[0]} to {names[-1]}"
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
