"""What several commands share: reading a method's name and task options, common options, printing JSON."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import BadValue, SelfteachError, UnknownName, nearest, unknown
from ..core.method import MethodEntry
from ..core.regime import home_of
from ..core.serial import plain
from ..loop.settings import SETTING_GROUPS, SETTING_NAMES, split_settings
from .arguments import Parser, add_fields, add_typed, assignments
from .streams import results

ROWS = "rows"  # the task of a user's own data


def print_json(value: Any) -> None:
    """Print one line of JSON, the command's result; numbers that are not finite become null."""
    print(json.dumps(plain(value)), file=results(), flush=True)


def print_note(text: str) -> None:
    """Print a line on stderr, so that stdout holds results alone."""
    print(text, file=sys.stderr, flush=True)


def measure_each(
    names: Sequence[str], measure: Callable[[str, float | None], Any], as_json: bool, hours: float | None = None
) -> int:
    """Measure one after another; what fails is said and the others go on. The exit code: 1 where one failed.

    names    whose results are printed as one object, with as_json
    measure  of a name, and the hours that are left (None: all that it takes), its result
    hours    no other one is begun after so many

    Raises BadValue or UnknownName where the first one is refused, as the others would be.
    """
    end = None if hours is None else time.monotonic() + 3600 * hours
    results: dict[str, Any] = {}
    failed: list[str] = []
    for number, name in enumerate(names, 1):
        left = None if end is None else (end - time.monotonic()) / 3600
        if left is not None and left <= 0:
            print_note(f"the time is over: {len(names) - number + 1} of {len(names)} are not begun")
            break
        if number > 1:  # what is wrong with the first one is said in a line of its own
            print_note(f"[{number}/{len(names)}] {name}")
        try:
            results[name] = measure(name, left)
        except SelfteachError as error:
            if number == 1 and isinstance(error, BadValue | UnknownName):
                raise
            failed.append(name)
            print_note(f"{name}: {error}")
    if as_json:
        print_json(results)
    if failed:
        print_note(f"not measured: {', '.join(failed)}")
    return 1 if failed else 0


def load_files(files: Sequence[str]) -> tuple[str, ...]:
    """Import the user's own files and return their full paths, which the run's configuration keeps."""
    for file in files:
        registry.load_file(file)
    return tuple(str(Path(f).resolve()) for f in files)


def read_method(word: str) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    """(entry, hyper-parameters, files used) of `grpo`, `grpo:beta=0.04,rollouts=4` or `my/file.py:name`."""
    entry, words, used = _method_words(word)
    return entry, assignments(f"hyper-parameter of {entry.name}", words, entry.hyper_parameters), used


def read_arm(word: str) -> tuple[Any, dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """(entry, hyper-parameters, settings, files used) of an arm: as `read_method`, and settings of the run beside the
    hyper-parameters: `grpo:lr=3e-4,beta=0.04`.
    """
    entry, words, used = _method_words(word)
    return (
        entry,
        *split_arm(entry, assignments(f"hyper-parameter of {entry.name} or setting", words, known_to(entry))),
        used,
    )


def known_to(entry: Any) -> dict[str, inspect.Parameter]:
    """What an arm may set: its method's hyper-parameters, and settings, which are also run.NAME."""
    out = dict(entry.hyper_parameters)
    for prefix, cls in SETTING_GROUPS.values():
        hints = typing.get_type_hints(cls)
        for f in fields(cls):
            name = prefix + f.name
            parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[f.name])
            out.setdefault(name, parameter)
            out[f"run.{name}"] = parameter
    return out


def split_arm(entry: Any, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(hyper-parameters, settings) of values by names of `known_to`.

    Raises BadValue for one that is given twice, and for a seed, which an experiment sets.
    """
    args = {n: v for n, v in values.items() if n in entry.hyper_parameters}
    settings = {n.removeprefix("run."): v for n, v in values.items() if n not in args}
    if len(args) + len(settings) < len(values):
        twice = next(n for n in settings if n in values and f"run.{n}" in values)
        raise BadValue(f"{entry.name}: {twice} and run.{twice} are the same setting; leave one out")
    if "seed" in settings:
        raise BadValue(f"{entry.name}: every arm is run with the same seeds; leave seed out, and give --seeds N")
    return args, settings


def _method_words(word: str) -> tuple[Any, list[str], tuple[str, ...]]:
    """(entry, KEY=VALUE words, files used) of a method's word."""
    used: tuple[str, ...] = ()
    head, colon, rest = word.partition(".py:")
    if colon:
        used = load_files([head + ".py"])
        word = rest
    name, _, task_options = word.partition(":")
    if name.endswith(".py") and not colon:
        raise BadValue(f"{word}: names a file and no method of it; give {word}:NAME")
    if name not in registry.methods:
        raise BadValue(f"no method is called {name!r}; {nearest(name, registry.methods)} (all: selfteach methods)")
    entry = registry.methods.get(name)
    words: list[str] = []
    for piece in task_options.split(",") if task_options else []:
        if "=" in piece or not words:
            words.append(piece)
        else:
            words[-1] += "," + piece  # a comma inside a value
    return entry, words, used


def read_task_options(task: str, words: Sequence[str]) -> dict[str, Any]:
    """The --set KEY=VALUE words as options of a task. Raises UnknownName for a task or a key that does not exist."""
    if task not in registry.tasks:
        raise unknown("task", task, registry.tasks)
    known = inspect.signature(registry.tasks.get(task), eval_str=True).parameters
    return assignments(f"option of task {task}", words, known)


def add_trust(parser: Any) -> None:
    """Add the option by which a run folder's own code may be run."""
    trust = "run the Python files that the run's config.json names, though you have not run them here before"
    parser.add_argument("--trust", action="store_true", help=trust)


TITLES = {
    "settings": "training",
    "warm": "warm start of a fresh model",
    "final_eval": "evaluation before and after training",
}


def add_run_options(parser: Parser, shared: Collection[str] = ()) -> None:
    """Add the options of a run's settings. `shared`: names that its method has too."""
    for group, (prefix, cls) in SETTING_GROUPS.items():
        add_fields(parser.add_argument_group(TITLES[group]), cls, prefix, shared)


class _Environment(argparse.Action):
    """`--env FILE.py:CLASS` is short for `--task environment --set env=FILE.py:CLASS`."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        file, colon, name = str(values).rpartition(":")
        word = f"{Path(file).resolve()}:{name}" if colon else name  # a run goes on from any folder
        namespace.task = "environment"
        namespace.set = [*getattr(namespace, "set", ()), f"env={word}"]


def add_task(parser: Any) -> None:
    """Add the options that choose a task."""
    task = "the task (default: the method's own); see selfteach tasks"
    parser.add_argument("--task", metavar="T", help=task)
    env = "play an environment in place of a task: the file and the class in it that has reset and step"
    parser.add_argument("--env", metavar="FILE.py:CLASS", action=_Environment, help=env)
    options = "options of the task; selfteach tasks T lists them"
    parser.add_argument("--set", metavar="KEY=VALUE", nargs="+", action="extend", help=options)
    data = "rows of your own in place of a task: JSONL, JSON, CSV or Parquet (docs/data.md)"
    parser.add_argument("--data", metavar="FILE", help=data)
    test = "rows that are measured and never learned (default: a share of --data)"
    parser.add_argument("--test-data", metavar="FILE", help=test)
    add_typed(parser, "test_share", float, "share of the prompts of --data that is kept for the test (default: 0.1)")
    reward = "a reward of ours, TRL's or verl's form, in place of an exact match with the answer; several are summed"
    parser.add_argument("--reward", metavar="FILE.py:NAME[=WEIGHT]", nargs="+", action="extend", help=reward)
    tools = "typed functions with docstrings that the policy may call in its turns (docs/tools.md)"
    parser.add_argument("--tools", metavar="FILE.py:NAME", nargs="+", action="extend", help=tools)
    corpus = "what the tool search searches: a folder or file of texts, JSONL or Parquet (docs/search.md)"
    parser.add_argument("--corpus", metavar="PATH", help=corpus)
    url = "a search server in place of a corpus: selfteach serve-search, or another that speaks Search-R1's request"
    parser.add_argument("--search-url", metavar="URL", help=url)
    retriever = "of a corpus bm25 (default), dense or fused; of a server http (default) or searxng"
    parser.add_argument("--retriever", metavar="NAME", help=retriever)
    search = (
        "further options of the search: top, chars, timeout, retries, in_flight, cached; to make it worse, a task's own"
        " engine too: noise, failures, latency, perturbed"
    )
    parser.add_argument("--search", metavar="KEY=VALUE", nargs="+", action="extend", help=search)


def add_sampling(parser: Any, own: Collection[str] = ()) -> None:
    """Add the options of rollouts. own: hyper-parameters of the method, which are options already."""
    for name, text in (("temperature", "temperature of the rollouts"), ("top_p", "nucleus of the rollouts")):
        if name not in own:
            add_typed(parser, name, float, f"{text} (default: 1), where the method does not state its own sampling")


OF_SEARCH = ("corpus", "search_url", "retriever", "search")
# What `data_arguments` reads.
OF_DATA = ("data", "test_data", "test_share", "reward", "tools", *OF_SEARCH, "temperature", "top_p")


def task_of(given: Mapping[str, Any], entry: MethodEntry[...] | None) -> str:
    """The task of a command line: rows of the user's, the one that is named, or the method's home."""
    if "data" in given or "test_data" in given:
        if given.get("task", ROWS) != ROWS:
            raise BadValue(f"--data: holds the rows, so --task {given['task']} cannot go with it; leave one out")
        return ROWS
    return given.get("task") or (home_of(entry).task if entry else "atlas")


def data_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """The given data, reward and sampling as arguments of `configuration.plan`."""
    names = {"data": "train", "test_data": "test"}
    out = {names.get(n, n): given[n] for n in OF_DATA if n in given}
    if "reward" in out:
        pairs = [_weighted(word) for word in out["reward"]]
        out["reward"] = pairs[0][1] if len(pairs) == 1 and pairs[0][0] == 1 else pairs
    if "search" in out:
        from ..tools.retrieve import SEARCH_OPTIONS

        out["search"] = assignments("option of search", out["search"], SEARCH_OPTIONS)
    return out


def _weighted(word: str) -> tuple[float, str]:
    """(weight, FILE.py:NAME) of FILE.py:NAME or FILE.py:NAME=WEIGHT."""
    name, equals, weight = word.rpartition("=")
    if not equals or "/" in weight or weight.endswith(".py"):
        return 1.0, word
    try:
        return float(weight), name
    except ValueError:
        raise BadValue(f"--reward {word}: the weight {weight!r} is no number; give FILE.py:NAME=0.5") from None


def add_model(parser: Any) -> None:
    """Add the options for the model that a run starts from, and for files of the user's own."""
    model = (
        "a model's name, a folder in the Hub's layout, a .gguf file, or a name of the Hub (Qwen/Qwen2.5-0.5B) that is"
        " in the local cache (default: tiny); see selfteach models"
    )
    parser.add_argument("--model", metavar="M", help=model)
    download = "get a model of the Hub that is not in the local cache, and say what is downloaded"
    parser.add_argument("--download", action="store_true", help=download)
    use = "files of your own that register methods, tasks or blocks"
    parser.add_argument("--use", metavar="FILE.py", nargs="+", action="extend", help=use)


def model_of(given: Mapping[str, Any]) -> str | None:
    """The model of a command line as a configuration names it; None where none is given.

    Raises BadValue for a name of the Hub that is not in the local cache, without --download.
    """
    if "model" not in given:
        if given.get("download"):
            raise BadValue("--download: gets a model of the Hub; name it by --model")
        return None
    from ..model.outside_models import located

    return located(given["model"], bool(given.get("download")))


def plan_arguments(given: Mapping[str, Any], entry: Any = None) -> dict[str, Any]:
    """The given hyper-parameters, settings and model as arguments of `configuration.plan`."""
    names = {*SETTING_NAMES, *(entry.hyper_parameters if entry else ()), "model"}
    dotted: dict[str, dict[str, Any]] = {"method": {}, "run": {}}
    for key, value in given.items():
        of, dot, name = key.partition(".")
        if dot:
            dotted[of][name] = value
    bare = {k: v for k, v in given.items() if k in names}
    return {"args": dotted["method"], "settings": dotted["run"], **bare}


def settings_of(given: Mapping[str, Any], entry: Any = None) -> dict[str, Any]:
    """The given settings of the run, for a command that takes no hyper-parameters as options.

    Raises BadValue for a name that the method `entry` has too, given without `run.`.
    """
    words = plan_arguments(given)
    named = {k: v for k, v in words.items() if k in SETTING_NAMES}
    return split_settings(entry, named, {}, words["settings"])[1]
