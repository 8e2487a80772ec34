"""Command lines made of what the commands themselves declare, and what becomes of one that is checked but not begun."""

from __future__ import annotations

import argparse
import inspect
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
from hypothesis import strategies as st

from selfteach import training
from selfteach.analysis import cluster_plan, experiments_page, ledger
from selfteach.bench import measure
from selfteach.cli import main
from selfteach.commands import (
    bench,
    chat,
    compare,
    evaluate,
    export,
    generate,
    listing,
    plan,
    regimes,
    reproduce,
    rollouts,
    serve,
    serve_search,
    side_by_side,
    sweep,
    train,
    view,
)
from selfteach.configuration import RunConfig
from selfteach.core import registry
from selfteach.experiments import runs
from selfteach.loop import checkpoint
from selfteach.serving import loading

METHODS = ["grpo", "m2po", "ssrl", "ttrl", "sft", "bandit_reinforce", "grpo:beta=0.1,rollouts=2"]
TASKS = ["bandit", "chain_sum", "countdown", "digit_sum", "strings"]
# What a person, or a script that went wrong, may write where a value belongs.
ODD = [
    "", " ", "0", "-1", "1", "2", "007", "1e3", "1.5", "-0.0", "1e400", "-1e400", "nan", "inf", "-inf", "1_000", "0x10",
    "none", "null", "yes", "no", "True", "1,2", "1,2,3", ",", "()", "(((((", "[1,2]", "{}", "a=b", "=", "==1", "--",
    "-", "../..", "/", "/dev/null", "~", "*", "'", '"', "\\", "\n", "a\tb", "é", "٣", "Ⅷ", "\udcff", "😀", "x" * 300,
    "9" * 400, "1e-400", "99999999999999999999", "None", "lambda: 0", "__import__('os')", "cuda:99", "cpu", "auto",
    "all-linear", "run", "results",
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(ODD),
    st.integers(-3, 10_000).map(str),
    st.floats(width=32).map(str),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
)


class Planned(Exception):
    """Everything was checked, and work would have begun."""


@dataclass
class Outcome:
    """What a command line led to. code: 0 printed, 2 refused, -1 planned: work would have begun."""

    code: int
    out: str
    err: str
    seconds: float  # of the processor
    run_config: RunConfig | None


PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "eval": evaluate.parser,
    "show": rollouts.parser,
    "export": export.parser,
    "generate": generate.parser,
    "chat": chat.parser,
    "serve": serve.parser,
    "serve-search": serve_search.parser,
    "view": view.parser,
    "compare": compare.parser,
    "side-by-side": side_by_side.parser,
    "sweep": sweep.parser,
    "reproduce": reproduce.parser,
    "regimes": regimes.parser,
    "bench": bench.parser,
    "plan": plan.parser,
    "ledger": reproduce.ledger_parser,
    **{name: (lambda name=name: listing.parser(name)) for name in ("methods", "tasks", "models")},
}
PLACES = {
    "eval": [*METHODS, "run", "nothing"],
    "show": ["logged", "logged", "logged", "run", "nothing", "file"],
    "view": ["run", "nothing", "file", ".", "results"],
    **{c: ["run", "nothing", "tiny", "file", "results", "-"] for c in ("generate", "chat", "serve", "export")},
    "serve-search": ["notes", "notes", "notes", "file", "nothing", "results"],
    "compare": METHODS,
    "side-by-side": ["search", "nothing"],
    "sweep": METHODS,
    "reproduce": ["grpo", "ttrl", "bandit_reinforce", "grpo:beta=1"],
    "regimes": ["deep", "skill", "bandit_small"],
    "bench": ["rollout", "learn", "step"],
    "methods": METHODS,
    "tasks": TASKS,
}


def options(parser: argparse.ArgumentParser) -> list[tuple[str, Any]]:
    """(option, its action) of a parser, without help."""
    return [
        (name, action)
        for action in parser._actions
        for name in action.option_strings
        if not isinstance(action, argparse._HelpAction)
    ]


def assignments_of(tasks: list[str]) -> st.SearchStrategy[str]:
    """KEY=VALUE words for the options of some tasks, and for none."""
    keys = sorted(
        {k for t in tasks for k in inspect.signature(registry.tasks.get(t)).parameters} | {"n_test", "nothing"}
    )
    return st.builds(lambda k, v: f"{k}={v}", st.sampled_from(keys), VALUES)


def values_of(name: str, action: Any, model: str) -> st.SearchStrategy[list[str]]:
    """The words that may follow an option."""
    fitting: dict[str, st.SearchStrategy[str]] = {
        "--model": st.sampled_from([model, model, model, "tiny-s", "tiny", "nothing"]),
        "--task": st.sampled_from(TASKS),
        "--set": assignments_of(TASKS),
        "--grid": st.builds(lambda k, v: f"{k}={v}", st.sampled_from(["lr", "beta", "seed", "clip", "bad"]), VALUES),
        "--out": st.sampled_from(["new", "run", "file", "", "a/b"]),
        "--export": st.sampled_from(["new.html", "run", "", "a/b.html", "file"]),
        "--gguf": st.sampled_from(["new.gguf", "run", "", "a/b"]),
        "--hub": st.sampled_from(["new", "run", "", "a/b", "file"]),
        "--jsonl": st.sampled_from(["new.jsonl", "run", "", "a/b"]),
        "--parquet": st.sampled_from(["new.parquet", "run", "", "a/b"]),
        "--lengths": st.sampled_from(["logged", "run", "nothing", "file", ""]),
        "--host": st.sampled_from(["127.0.0.1", "localhost", "::1", "", "1.2.3.4", "\x1b", "a b"]),  # no look-ups
        "--corpus": st.sampled_from(["results", "file", "nothing", "", "run/config.json"]),
        "--page": st.sampled_from(["new.md", "run", "file/page.md", "", "a/b.md"]),
    }
    one = fitting.get(name, VALUES)
    if action.metavar and "|" in str(action.metavar):
        one = st.one_of(st.sampled_from(str(action.metavar).split("|")), one)
    if action.nargs == 0:
        return st.just([])
    if action.nargs == "?":
        return st.lists(one, max_size=1)
    return st.lists(one, min_size=1, max_size=3) if action.nargs == "+" else one.map(lambda v: [v])


@st.composite
def command_lines(draw: Any, command: str, model: str) -> list[str]:
    """A command line of a command: mostly its own options, with values of every kind."""
    if command == "train":
        name = draw(st.sampled_from([*METHODS[:-1], "--config", "--resume", "nothing"]))
        if name.startswith("--"):
            head, parser = [name, draw(st.sampled_from(["run/config.json", "run", "file", "nowhere"]))], train.parser()
        else:
            entry = registry.methods.get(name) if name in registry.methods else None
            head, parser = [name, "--task", draw(st.sampled_from(TASKS)), "--model", model], train.parser(entry)
    else:
        parser = PARSERS[command]()
        head = [draw(st.sampled_from(PLACES[command]))] if command in PLACES and draw(st.integers(0, 9)) else []
        known = {name for name, _ in options(parser)}
        if "--model" in known and command not in ("bench", "plan"):
            head += ["--model", model]
        if command == "sweep" and draw(st.integers(0, 9)):
            head += ["--grid", "lr=1e-4,2e-4"]
        if "--task" in known and command != "show":  # there it is a question's name
            head += ["--task", draw(st.sampled_from(TASKS[:3]))]
    chosen = draw(st.lists(st.sampled_from(options(parser)), max_size=4))
    words = [*head]
    for name, action in chosen:
        given = draw(values_of(name, action, model))
        if given and action.nargs in (None, "?") and draw(st.booleans()):
            words.append(f"{name}={given[0]}")
        else:
            words += [name, *given]
    return [command, *words]


@contextmanager
def only_planned() -> Iterator[list[RunConfig]]:
    """Let every command stop where its work would begin; gives the configurations that came so far."""
    seen: list[RunConfig] = []

    def stop(*_: Any, **__: Any) -> Any:
        raise Planned

    checked = training.checkpoint.check_folder

    def check_folder(run: Any, config: Any, resume: bool) -> None:
        checked(run, config, resume)
        seen.append(RunConfig.from_json(config))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "set_threads", lambda count: None)
        patch.setattr(checkpoint, "claimed", stop)  # train: the folder is taken
        patch.setattr(training, "warm_started", stop)
        patch.setattr(training, "make_session", stop)  # eval
        patch.setattr(view, "listening", stop)
        patch.setattr(serve_search, "listening", stop)
        patch.setattr(loading, "start_of", stop)  # generate, chat, serve
        patch.setattr(sys, "stdin", io.StringIO("a prompt"))
        patch.setattr(runs.RunPool, "run", stop)  # compare, reproduce, regimes --measure
        patch.setattr(import_module("selfteach.experiments.side_by_side"), "lineup", stop)
        patch.setattr(measure, "measure_workload", stop)  # bench
        patch.setattr(measure, "measure", stop)
        patch.setattr(cluster_plan, "splits", stop)
        patch.setattr(ledger, "draw_curves", lambda *given: None)  # a second each, ten times a page
        for draw in ("draw_curves", "draw_samples"):
            patch.setattr(experiments_page, draw, lambda result, file: file)
        patch.setattr(checkpoint, "check_folder", check_folder)
        yield seen


def outcome(words: list[str], read: Callable[[], Any]) -> Outcome:
    """What a command line leads to; `read` gives what was printed, as capsys.readouterr does."""
    read()
    started = time.process_time()
    with only_planned() as seen:
        try:
            code = main(words)
        except Planned:
            code = -1
    printed = read()
    return Outcome(code, printed.out, printed.err, time.process_time() - started, seen[-1] if seen else None)
