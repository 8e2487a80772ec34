"""selfteach train: a method on a task, with live progress and a table at the end."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import BadValue
from .arguments import Parser, add_typed, documented, kind_of
from .common import add_run_options, add_what, asks_help, changes, emit, method_named, note, task_options, use_files

ABOUT = """Teach a model with a method, and measure it before and after.

METHOD is a method's name (selfteach methods lists them) or path/to/file.py:name. `selfteach train METHOD --help` shows its
hyper-parameters, which are options too. A fresh model is first warm-started on the task's demonstrations (once; it is cached).
"""
EXAMPLES = """examples:
  selfteach train ssrl
  selfteach train grpo --task chain_sum --set terms=2,3 --rollouts 16 --lr 1e-4 --steps 80 --seed 1
  selfteach train my_methods.py:mine --out runs/mine
  selfteach train grpo --model smollm2-135m --lora-rank 16 --lr 1e-4     adapters instead of all weights
  selfteach train --resume runs/ssrl-1                 go on where the newest checkpoint left it
  selfteach train --config runs/ssrl-1/config.json --seed 2

what comes out: a folder (default: runs/METHOD-N) with last/model.safetensors (the newest checkpoint), config.json, figures.json,
curves.png and log/ (every event, every rollout). Ctrl-C ends with a checkpoint. With --json the last line of stdout is
{"folder": ..., "figures": {"before": ..., "after": ...}, "done": true}."""


def parser(entry: Any = None) -> Parser:
    """The options of `train`, with those of one method."""
    name = entry.name if entry else "METHOD"
    about, end = ABOUT, EXAMPLES
    if entry:
        about = f"{entry.name}: {entry.doc}\n\nfamily {entry.family}, paper {entry.paper}"
        end = f"{entry()}\n\n{EXAMPLES}"
    made = Parser("train", usage=f"selfteach train {name} [options]", description=about, epilog=end)
    add_what(made)
    made.add_argument("--out", metavar="DIR", help="the run's folder (default: runs/METHOD-N with the first free N)")
    made.add_argument("--resume", metavar="RUN", help="go on with a run; it needs no METHOD, and takes no option but --json")
    made.add_argument("--config", metavar="FILE", help="do again what a run's config.json says; settings given beside it win over the file")
    made.add_argument("--json", action="store_true", help="only JSON on stdout, progress on stderr")
    if entry and entry.knobs:
        group, docs = made.add_argument_group(f"hyper-parameters of {entry.name}"), documented(entry.doc)
        for knob, parameter in entry.knobs.items():
            flag = knob if f"--{knob.replace('_', '-')}" not in common_flags() else f"method-{knob}"
            default = "none" if parameter.default is None else parameter.default
            add_typed(group, flag, kind_of(parameter), docs.get(knob, ""), default, dest=f"knob {knob}")
    add_run_options(made)
    return made


def common_flags() -> set[str]:
    """The options that every method has, whose names a hyper-parameter cannot take."""
    made = Parser("train")
    add_what(made)
    add_run_options(made)
    return {o for o in made._option_string_actions if o.startswith("--")} | {"--out", "--resume", "--config", "--json", "--help"}


def run(command: str, words: Sequence[str]) -> int:
    """Read the arguments, then train, resume, or do a configuration again."""
    first, extra = parser().parse_known_args([w for w in words if w not in ("-h", "--help")])
    used = use_files(getattr(first, "use", ()))
    name = extra[0] if extra and not extra[0].startswith("-") else None
    if asks_help(words):
        entry = method_named(name)[0] if name else None
        parser(entry).print_help()
        if not entry:
            print("\nmethods: " + ", ".join(registry.methods))
        return 0
    if hasattr(first, "resume"):
        return _resume(words, name)
    if name is None and not hasattr(first, "config"):
        first_word = f"{extra[0]} belongs to a method, which comes first" if extra else "which method?"
        raise BadValue(f"selfteach train: {first_word}: selfteach train METHOD [options]; there are: {', '.join(registry.methods)}")
    if name is None:
        return _again(parser().read(words))
    if hasattr(first, "config"):
        raise BadValue(f"selfteach train: --config holds the method already; leave {name} out")
    entry, args, more = method_named(name)
    given = vars(parser(entry).read(words, expect=[name]))
    args |= {k.removeprefix("knob "): v for k, v in given.items() if k.startswith("knob ")}
    return _start(entry, args, given, (*used, *more))


def _start(entry: Any, args: Mapping[str, Any], given: Mapping[str, Any], used: tuple[str, ...]) -> int:
    from .. import api

    task = given.get("task") or (entry.claim.task if entry.claim else "atlas")
    job = api.plan(entry.name, task, task_options(task, given.get("set", ())), args=args, use=used, **changes(given))
    return _train(job, given.get("out"), bool(given.get("json")))


def _again(args: argparse.Namespace) -> int:
    """Do again what a config.json says, with some settings changed."""
    from .. import api

    given = vars(args)
    for name in ("task", "set", "use"):
        if name in given:
            raise BadValue(f"selfteach train: --{name} cannot go with --config, which holds it; edit the file or name the method instead")
    job = api.read_job(Path(given["config"]))
    return _train(api.changed(job, **changes(given)), given.get("out"), bool(given.get("json")))


def _train(job: Any, out: str | None, as_json: bool) -> int:
    from .. import api

    folder = Path(out) if out else api.free_folder(job.method.name or "method")
    return _watched(lambda seen: api.train(job, folder, seen), folder, as_json)


def _resume(words: Sequence[str], name: str | None) -> int:
    from .. import api

    given = vars(parser().read(words, expect=[name] if name else ()))
    others = ([name] if name else []) + [f"--{k.replace('_', '-')}" for k in given if k not in ("resume", "json")]
    if others:
        raise BadValue(f"selfteach train: --resume goes on with the run's own configuration; leave out {', '.join(others)}")
    folder = Path(given["resume"])
    return _watched(lambda seen: api.resume(folder, seen), folder, bool(given.get("json")))


def _watched(work: Any, folder: Path, as_json: bool) -> int:
    """Do a run with its progress shown, then draw its curves and show its figures."""
    from .progress import watching
    from .show import show_run

    try:
        with watching() as seen:
            done = work(seen)
    except KeyboardInterrupt:
        done = None
    except BaseException:
        _remove_if_empty(folder)
        raise
    picture = draw(folder)
    if done is None or not done.done:
        note(
            f"stopped; go on with: selfteach train --resume {folder}"
            if (folder / "config.json").exists()
            else "stopped before there was anything to keep"
        )
        if as_json:
            emit({"folder": str(folder), "figures": done.figures if done else {}, "done": False})
        return 130
    if as_json:
        emit({"folder": str(folder), "figures": done.figures, "done": True})
    else:
        show_run(done, picture)
    return 0


def draw(folder: Path) -> Path | None:
    """The run's curves as a picture; a failure to draw costs a line, never the run."""
    from ..analysis.curves import picture

    try:
        return picture(folder)
    except OSError as error:
        note(f"{folder}: no picture could be written ({error.strerror or error})")
        return None


def _remove_if_empty(folder: Path) -> None:
    """A folder that was claimed for a run that never began."""
    if re.search(r"-\d+$", folder.name) and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
