"""An episode of an environment: its calls checked, so that whatever it does wrong is an error that names it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..core.blocks import block
from ..core.env import Env, EnvStep
from ..core.errors import BadValue, SelfteachError, describe
from ..core.task import Task
from ..core.user_code import on_run_loop

MAX_OBSERVATION = 20_000  # characters of an observation
PROBE_SECONDS = 60.0  # that the first reset and step of an environment may take
T = TypeVar("T")


class EnvEpisode:
    """One episode of an environment, from its reset to its close.

    rewards  of the steps so far; done: whether the environment said so. Every call raises SelfteachError that names
    the environment where this raises, or returns something else than it should.
    """

    def __init__(self, make: Callable[[], Env], name: str) -> None:
        self.name, self.rewards, self.done = name, list[float](), False
        self.env: Env = self._call("its constructor", make)

    def reset(self, task: Task) -> str:
        """The first observation, which ends a line."""
        return self._text("reset", self._call("reset", self.env.reset, task))

    def step(self, text: str) -> EnvStep:
        """Carry out a text."""
        got = self._call("step", self.env.step, text)
        if not isinstance(got, tuple) or len(got) != 3:
            what = f"{len(got)} values" if isinstance(got, tuple) else f"a {type(got).__name__}"
            raise self._wrong(f"step returned {what}, not (observation, reward, done)")
        observation, reward, done = got
        if not isinstance(reward, int | float | np.number | np.bool_) or not math.isfinite(reward):
            raise self._wrong(f"step returned the reward {str(reward)[:40]!r}, which is no finite number")
        if not isinstance(done, bool | np.bool_):
            raise self._wrong(f"step returned {str(done)[:40]!r} as done, which is neither True nor False")
        self.rewards.append(float(reward))
        self.done = bool(done)
        return EnvStep(self._text("step", observation), float(reward), self.done, self._notes())

    def _notes(self) -> dict[str, float]:
        found = self._call("notes", self.env.notes)
        try:
            numbers = {str(name): float(value) for name, value in found.items()}
        except (AttributeError, TypeError, ValueError):
            raise self._wrong(f"notes returned {str(found)[:40]!r}, which is no dict of numbers") from None
        if bad := [name for name, value in numbers.items() if not math.isfinite(value)]:
            raise self._wrong(f"notes returned {bad[0]} = {numbers[bad[0]]}, which is no finite number")
        return numbers

    def finish(self) -> bool:
        """Close the environment; whether the episode is done and went well."""
        good = self.done and bool(self._call("success", self.env.success, tuple(self.rewards)))
        self._call("close", self.env.close)
        return good

    def _call(self, what: str, fn: Callable[..., T], *args: Any) -> T:
        try:
            return fn(*args)
        except BadValue:  # ours, of an environment that is there: one line already
            raise
        except Exception as error:
            raise self._wrong(f"{what} raised {describe(error, 300)}") from error

    def _text(self, what: str, text: Any) -> str:
        return observation_text(f"environment {self.name}", what, text)

    def _wrong(self, what: str) -> SelfteachError:
        return SelfteachError(f"environment {self.name}: {what}")


def observation_text(name: str, what: str, text: Any) -> str:
    """An observation as text that ends a line. name: `environment X`; what: its call that gave it.

    Raises SelfteachError for what is no text, cannot be encoded or is too long.
    """
    if not isinstance(text, str):
        raise SelfteachError(f"{name}: {what} returned a {type(text).__name__} as observation, not text")
    if len(text) > MAX_OBSERVATION:
        raise SelfteachError(f"{name}: {what} returned {len(text):,} characters, above {MAX_OBSERVATION:,}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SelfteachError(f"{name}: {what} returned text that cannot be encoded ({error.reason})") from None
    return text.rstrip("\n") + "\n"


@block
def environment(*, make: Callable[[], Env] = Env, name: str = "", in_thread: bool = True) -> Callable[[Any], Any]:
    """The tool by which the program `act` plays an environment, each call in a thread of its own with a deadline, or
    on the run's event loop (`Env.in_thread`).

    A task begins an episode: (episode, first observation). (episode, text) is a step of it; (episode, None) ends it and
    says whether it went well.
    """

    def play(query: Any) -> Any:
        if isinstance(query, Task):
            episode = EnvEpisode(make, name)
            return episode, episode.reset(query)
        episode, text = query
        return episode.finish() if text is None else episode.step(text)

    return play if in_thread else on_run_loop(play)


def probe(make: Callable[[], Env], name: str, task: Task) -> None:
    """Play one step of an environment, so that what is wrong with it shows before any work. Raises BadValue."""
    errors = list[BaseException]()

    def play() -> None:
        try:
            episode = EnvEpisode(make, name)
            episode.reset(task)
            options = episode._call("actions", episode.env.actions)
            expert = episode._call("expert", episode.env.expert)
            episode.step(str(expert or next(iter(options), "")))
            episode.finish()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=play, name="probe of an environment", daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    if thread.is_alive():
        raise BadValue(f"environment {name}: its first reset and step did not end within {PROBE_SECONDS:g} s")
    if errors:
        error = errors[0]
        raise BadValue(str(error) if isinstance(error, SelfteachError) else f"environment {name}: {describe(error)}")
