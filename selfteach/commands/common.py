"""What several commands share: naming a method, task options, common settings, JSON out."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import BadValue, nearest, unknown
from .arguments import SETTINGS, SURVEY, WARM, Parser, add_fields, assignments


def emit(value: Any) -> None:
    """Print one line of JSON; numbers that are not finite become null."""
    from ..loop.log import plain

    print(json.dumps(plain(value)), flush=True)


def note(text: str) -> None:
    """A line for people, on stderr, so that stdout holds results alone."""
    print(text, file=sys.stderr, flush=True)


def asks_help(words: Sequence[str]) -> bool:
    return "-h" in words or "--help" in words


def use_files(files: Sequence[str]) -> tuple[str, ...]:
    """Import files of the user's own; returns their full paths, which go to the run's configuration."""
    for file in files:
        registry.load_file(file)
    return tuple(str(Path(f).resolve()) for f in files)


def method_named(word: str) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    """(entry, hyper-parameters, files used) of `grpo`, `grpo:beta=0.04,rollouts=4` or `my/file.py:name`."""
    used: tuple[str, ...] = ()
    head, colon, rest = word.partition(".py:")
    if colon:
        used = use_files([head + ".py"])
        word = rest
    name, _, knobs = word.partition(":")
    if name.endswith(".py") and not colon:
        raise BadValue(f"{word}: which method of the file? say {word}:NAME")
    if name not in registry.methods:
        raise BadValue(f"no method is called {name!r}; {nearest(name, registry.methods)} (all: selfteach methods)")
    entry = registry.methods.get(name)
    words: list[str] = []
    for piece in knobs.split(",") if knobs else []:
        if "=" in piece or not words:
            words.append(piece)
        else:
            words[-1] += "," + piece  # a comma inside a value
    return entry, assignments(f"hyper-parameter of {name}", words, entry.knobs), used


def task_options(task: str, words: Sequence[str]) -> dict[str, Any]:
    """The --set KEY=VALUE words as options of a task. Raises UnknownName for a task or a key that does not exist."""
    if task not in registry.tasks:
        raise unknown("task", task, registry.tasks)
    known = inspect.signature(registry.tasks.get(task), eval_str=True).parameters
    return assignments(f"option of task {task}", words, known)


def add_run_options(parser: Parser) -> None:
    """The settings of a run: how it is trained, warm-started and measured."""
    from ..api import Survey
    from ..loop.assemble import Settings
    from ..loop.warmstart import Warm

    group = parser.add_argument_group("how it is trained")
    add_fields(group, Settings, SETTINGS)
    group.add_argument("--budget", type=int, metavar="TOKENS", help="stop after so many sampled tokens")
    add_fields(parser.add_argument_group("warm start of a fresh model"), Warm, WARM, "warm-")
    add_fields(parser.add_argument_group("measuring before and after"), Survey, SURVEY, "survey-")


def add_what(parser: Parser, task: bool = True) -> None:
    """Task, model, and files of the user's own."""
    if task:
        parser.add_argument("--task", metavar="T", help="what to learn (default: the task of the method's claim); see selfteach tasks")
        parser.add_argument("--set", metavar="KEY=VALUE", nargs="+", action="extend", help="options of the task; selfteach tasks T lists them")
    parser.add_argument("--model", metavar="M", help="a model's name or a folder in the Hub's layout (default: the task's own, or tiny)")
    parser.add_argument("--use", metavar="FILE.py", nargs="+", action="extend", help="files of your own that register methods, tasks or blocks")


def changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was said of settings, warm start, survey, model and budget, as `plan` takes it."""
    from ..api import Survey
    from ..loop.assemble import Settings
    from ..loop.warmstart import Warm

    names = {*Settings.__dataclass_fields__, "model", "budget"}
    names |= {f"warm_{n}" for n in Warm.__dataclass_fields__} | {f"survey_{n}" for n in Survey.__dataclass_fields__}
    return {k: v for k, v in given.items() if k in names}
