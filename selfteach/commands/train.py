"""The command `selfteach train`: a method on a task, with live progress and a table at the end."""

from __future__ import annotations

import argparse
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import BadValue, Terminated, quoted
from ..loop.settings import SETTING_NAMES, option_name
from .arguments import Parser, add_typed, doc_options, type_of
from .common import (
    OF_DATA,
    add_model,
    add_run_options,
    add_sampling,
    add_task,
    add_trust,
    data_arguments,
    load_files,
    model_of,
    plan_arguments,
    print_json,
    print_note,
    read_method,
    read_task_options,
    settings_of,
    task_of,
)

ABOUT = """Train a model with a method, and measure it before and after.

METHOD is a method's name (selfteach methods lists them) or path/to/file.py:name. `selfteach train METHOD --help`
shows its hyper-parameters, which are options too. A fresh model is first warm-started on the task's demonstrations
(once: the warm start is cached).
"""
OF_PLACES = (  # how a run is carried out, which may change on the way
    *("learner", "world", "learner_seconds", "cluster", "cluster_address", "cluster_file", "cluster_seconds"),
    *("cluster_restarts", "rollout_workers", "cpus_per_worker", "gpus_per_worker", "learner_cpus", "learner_gpus"),
    *("reward_workers", "cpus_per_reward_worker", "colocate"),
)
EXAMPLES = """examples:
  selfteach train ssrl
  selfteach train grpo --task chain_sum --set terms=2,3 --rollouts 16 --lr 1e-4 --steps 80 --seed 1
  selfteach train my_methods.py:mine --out runs/mine
  selfteach train grpo --data mine.jsonl --reward mine.py:score --model smollm2-135m   your own data (docs/data.md)
  selfteach train grpo --model smollm2-135m --lora-rank 16 --lr 1e-4   train adapters instead of all weights
  selfteach train m2po --method.budget 0.04 --run.budget 1e6           a name that the method and the run both have
  selfteach train --resume runs/ssrl-1                                 continue from the newest checkpoint
  selfteach train --resume runs/ssrl-1 --steps 80                      give it more steps, 80 in all
  selfteach train --config runs/ssrl-1/config.json --seed 2            repeat a run with another seed

what comes out: a folder (default: runs/METHOD-N) with last/model.safetensors (the newest checkpoint), config.json,
figures.json, curves.png and log/ (every event, every rollout). Ctrl-C ends with a checkpoint. With --json the last
line of stdout is {"folder": ..., "figures": {"before": ..., "after": ...}, "done": true}."""

ENDS = ("steps", "budget", "max_seconds")  # settings that a run may be given as it is resumed


def parser(entry: Any = None) -> Parser:
    """The options of `train`, with those of one method."""
    name = entry.name if entry else "METHOD"
    about, end = ABOUT, EXAMPLES
    if entry:
        about = f"{entry.name}: {entry.doc}\n\nfamily {entry.family}, paper {entry.paper}"
        end = f"{entry()}\n\n{EXAMPLES}"
    made = Parser("train", usage=f"selfteach train {name} [options]", description=about, epilog=end)
    add_task(made)
    add_model(made)
    made.add_argument("--out", metavar="DIR", help="the run's folder (default: runs/METHOD-N with the first free N)")
    made.add_argument(
        "--resume",
        metavar="RUN",
        help="continue a run; needs no METHOD, and takes no option but --steps, --budget and --max-seconds, by which it"
        " ends later, --learner, --cluster and what belongs to them, --log, --trust and --json",
    )
    made.add_argument(
        "--config",
        metavar="FILE",
        help="repeat the run of a config.json; settings given beside it override the file's",
    )
    made.add_argument(
        "--log",
        metavar="NAME,NAME",
        action="append",
        help="give metrics and some rollouts to tensorboard, wandb, mlflow, trackio or jsonl besides"
        " (docs/monitoring.md); a run that is resumed goes on in those it had",
    )
    add_trust(made)
    own = entry.hyper_parameters if entry else {}
    add_sampling(made, own)
    shared = own.keys() & SETTING_NAMES.keys()
    if own:
        group, docs = made.add_argument_group(f"hyper-parameters of {entry.name}"), doc_options(entry.doc)
        for name, p in own.items():
            default = "none" if p.default is None else p.default
            add_typed(group, name, type_of(p), docs.get(name, ""), default, "method", name in shared)
    for name in shared:  # accepted here, so that `configuration.plan` can refuse it with both meanings
        made.add_argument(option_name(name), dest=name, nargs="?", help=argparse.SUPPRESS)
    add_run_options(made, shared)
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach train`: train, resume, or repeat a configuration; returns the exit code."""
    helping = not {"-h", "--help"}.isdisjoint(words)
    first, extra = parser().untyped().parse_known_args([w for w in words if w not in ("-h", "--help")])
    used = load_files(getattr(first, "use", ()))
    name = extra[0] if extra and not extra[0].startswith("-") else None
    if helping:
        entry = read_method(name)[0] if name else None
        parser(entry).print_help()
        if not entry:
            print("\nmethods: " + ", ".join(registry.methods))
        return 0
    if hasattr(first, "resume"):
        return _resume(words, name)
    if name is None and not hasattr(first, "config"):
        first_word = f"{extra[0]} belongs to a method, which comes first" if extra else "a method is missing"
        raise BadValue(
            f"selfteach train: {first_word}: selfteach train METHOD [options]; there are: {', '.join(registry.methods)}"
        )
    if name is None:
        return _train_config(parser().read(words))
    if hasattr(first, "config"):
        raise BadValue(f"selfteach train: --config holds the method already; leave {name} out")
    entry, args, more = read_method(name)
    given = vars(parser(entry).read(words, expect=[name]))
    return _start(entry, args, given, (*used, *more))


def _start(entry: Any, args: Mapping[str, Any], given: Mapping[str, Any], used: tuple[str, ...]) -> int:
    from ..configuration import plan

    task = task_of(given, entry)
    words = plan_arguments(given, entry) | data_arguments(given)
    words["args"], words["model"] = {**args, **words["args"]}, model_of(given)
    run_config = plan(entry.name, task, read_task_options(task, given.get("set", ())), use=used, **words)
    return _train(run_config, given)


def _train_config(args: argparse.Namespace) -> int:
    """Repeat the run of a config.json, with some settings changed."""
    from ..configuration import read_run_config

    given = vars(args)
    for name in ("task", "set", "use", *OF_DATA):
        if name in given:
            raise BadValue(
                f"selfteach train: {option_name(name)} cannot go with --config, which holds it; edit the file,"
                f" or give the"
                " method instead"
            )
    run_config = read_run_config(Path(given["config"]), bool(given.get("trust")))
    entry = registry.methods.get(run_config.method.name) if run_config.method.name in registry.methods else None
    run_config = run_config.override(model_of(given), **settings_of(given, entry))
    return _train(run_config, given)


def _train(run_config: Any, given: Mapping[str, Any]) -> int:
    from ..training import new_run_folder

    folder = Path(given["out"]) if given.get("out") else new_run_folder(run_config.method.name or "method")
    return _run_with_progress(lambda: run_config, folder, False, given)


def _trackers(given: Mapping[str, Any]) -> list[str]:
    """The names of --log, which may be given several times and have several names."""
    return list(dict.fromkeys(name.strip() for words in given.get("log", ()) for name in words.split(",") if name))


def _resume(words: Sequence[str], name: str | None) -> int:
    given = vars(parser().read(words, expect=[name] if name else ()))
    others = ([name] if name else []) + [
        f"--{k.replace('_', '-')}" for k in given if k not in (*ENDS, *OF_PLACES, "resume", "log", "trust", "json")
    ]
    if others:
        raise BadValue(f"selfteach train: --resume takes the run's own configuration; leave out {', '.join(others)}")
    from ..api.run import load

    folder, trust = Path(given["resume"]), bool(given.get("trust"))
    changes = {name: given.get(name) for name in (*ENDS, *OF_PLACES)}
    return _run_with_progress(lambda: load(folder).ending(trust, **changes), folder, True, given)


def _run_with_progress(planned: Callable[[], Any], folder: Path, resume: bool, given: Mapping[str, Any]) -> int:
    """Carry out a run with its progress shown, then draw its curves and print its figures."""
    from ..api.launch import launch
    from ..loop.session import ignore_events
    from .show import show_run

    as_json = bool(given.get("json"))
    try:
        run = launch(planned(), folder, ignore_events, resume, True, ignore_events, _trackers(given))
        number = run.stopped_by
    except KeyboardInterrupt as stop:
        run, number = None, signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT
    except BaseException:
        _remove_if_empty(folder)
        raise
    picture = draw(folder)
    if run is None or not run.done:
        print_note(
            f"stopped; continue with: selfteach train --resume {quoted(folder)}"
            if (folder / "config.json").exists()
            else "stopped before anything was saved"
        )
        if as_json:
            print_json({"folder": str(folder), "figures": run.figures if run else {}, "done": False})
        return 128 + (number or signal.SIGINT)
    if as_json:
        print_json({"folder": str(folder), "figures": run.figures, "done": True})
    else:
        show_run(run, picture)
    return 0


def draw(folder: Path) -> Path | None:
    """Draw the run's curves; a failure prints a line and never stops the run."""
    from ..analysis.curves import draw_run

    try:
        return draw_run(folder)
    except (OSError, BadValue) as error:
        print_note(f"{folder}: no picture could be written ({getattr(error, 'strerror', None) or error})")
        return None


def _remove_if_empty(folder: Path) -> None:
    """Remove a folder that was created for a run that never began."""
    if re.search(r"-\d+$", folder.name) and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
