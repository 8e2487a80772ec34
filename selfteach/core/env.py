"""Environments: what a user writes to have a model act in a world of text, found by name, and checked before any work.

An environment knows nothing of programs, contexts or models. The program `act` (rollout/act.py) plays it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import trust
from .errors import BadValue, nearest
from .registry import load_file, user_module
from .task import Task
from .tool_calls import SEARCH


class Env:
    """An environment: a new object for every episode, which is played turn by turn.

    Write `reset` and `step`; everything else has a default.

    max_turns   turns of an episode, at most
    max_tokens  tokens of a turn, at most, unless the run says otherwise
    stop        strings that end a turn of a model without a chat template; they stay in the text
    whole_turn  `step` gets the whole turn, also where it has <answer>...</answer>
    in_thread   call it in a thread of its own, with a deadline; False for what computes for microseconds and never
                waits, where the threads would cost more than the environment: a call that hangs then holds up the run
    """

    max_turns: int = 30
    max_tokens: int = 16
    stop: tuple[str, ...] = ("\n",)
    whole_turn: bool = False
    in_thread: bool = True

    def reset(self, task: Task) -> str:
        """Begin the episode of a task (`task.tags["seed"]` is its seed) and return the first observation."""
        raise NotImplementedError

    def step(self, text: str) -> tuple[str, float, bool]:
        """Carry out what the model said; return (observation, reward, done).

        text: the last <answer>...</answer> of the turn, without such tags the whole turn; stripped.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Give back what the episode holds; called once, after its last step."""

    def notes(self) -> Mapping[str, float]:
        """Numbers about the last step, which stand with its turn. Those of these names are columns.

        executable  1 where the action could be carried out, else 0
        repeated    1 where it was said before in this episode, else 0
        progress    by how many steps the shortest way to the goal got shorter

        Those that begin with `search/` are summed over the episode and stand in its cost and among the figures.
        """
        return {}

    def actions(self) -> Sequence[str]:
        """Texts that may be said now. Demonstrations take some of them at random; empty: there is no such list."""
        return ()

    def expert(self) -> str | None:
        """A good text to say now, for the demonstrations of a warm start; None: the environment knows none."""
        return None

    def success(self, rewards: Sequence[float]) -> bool:
        """Whether an episode that is done went well, by the rewards of its turns. Here: the last one is above 0."""
        return bool(rewards) and rewards[-1] > 0


class EnvStep(NamedTuple):
    """What a step of an environment gave."""

    observation: str
    reward: float
    done: bool
    notes: Mapping[str, float] = {}

    @property
    def counts(self) -> dict[str, float]:
        """Of the notes those that are counted as the episode's, as a search engine's are: search/..."""
        return {name: n for name, n in self.notes.items() if name.startswith(SEARCH)}


_given: dict[str, type[Env]] = {}  # classes that were handed over in Python, by their word


def env_word(env: Any) -> str:
    """The word FILE.py:Class by which a class is found again in another process.

    Raises BadValue for what is no environment. A class without a file (of a notebook) is known in this process alone.
    """
    if isinstance(env, str):
        return env
    name = getattr(env, "__qualname__", type(env).__name__)
    check_env(env, name)
    try:
        file = str(Path(inspect.getsourcefile(env) or "").resolve())
    except TypeError:
        file = "this process"
    _given[f"{file}:{name}"] = env
    trust.remember_all([file])  # who gives a class runs its file
    return f"{file}:{name}"


def env_class(word: str) -> type[Env]:
    """The class of a word FILE.py:Class. Raises BadValue where there is none, or it is no environment."""
    if word in _given:
        return _given[word]
    file, colon, name = word.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise BadValue(
            f"environment {word}: give FILE.py:Class, the file and the class in it that has reset and step"
            + ("; a class of an earlier process without a file cannot be found again" if colon else "")
        )
    moved = None if Path(file).is_file() else sys.modules.get(user_module(file))  # a run folder's copy of it
    module = moved or load_file(file)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        own = [n for n, v in vars(module).items() if inspect.isclass(v) and issubclass(v, Env) and v is not Env]
        hint = nearest(name, own) if own else "no class there is an environment (class X(selfteach.Env))"
        raise BadValue(f"environment {word}: {file} has no {name}; {hint}")
    check_env(found, name)
    return found


def env_files(task: str, task_options: Mapping[str, Any]) -> list[str]:
    """The user's files that the options of a task name, which are run as it is made."""
    option = {"environment": "env", "verifiers": "env", "pettingzoo": "opponent", "textarena": "opponent"}.get(task, "")
    word = task_options.get(option)
    file = word.rpartition(":")[0] if isinstance(word, str) else ""
    return [file] if file.endswith(".py") else []


def check_env(env: Any, name: str) -> None:
    """Check that something is an environment's class, and that it can be called. Raises BadValue."""
    if not inspect.isclass(env) or not issubclass(env, Env):
        kind = "a class" if inspect.isclass(env) else f"a {type(env).__name__}"
        raise BadValue(
            f"environment {name}: is {kind} and no selfteach.Env; write class {name.rpartition('.')[2]}(selfteach.Env)"
            " with reset and step"
        )
    for method, argument, gives in (("reset", "task", "observation"), ("step", "text", "(observation, reward, done)")):
        own = getattr(env, method)
        wanted = f"write def {method}(self, {argument}), which returns {gives}"
        if own is getattr(Env, method):
            raise BadValue(f"environment {name}: has no {method} of its own; {wanted}")
        if inspect.iscoroutinefunction(own):
            raise BadValue(f"environment {name}: {method} is async, and it is called in a thread; {wanted}")
        try:
            inspect.signature(own).bind(None, None)
        except TypeError:
            raise BadValue(f"environment {name}: {method}{inspect.signature(own)} cannot be called; {wanted}") from None
