"""selfteach eval: measure the newest checkpoint of a run, or a model before any training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import BadValue, nearest
from .arguments import Parser
from .common import asks_help, emit, method_named, note, task_options, use_files

ABOUT = """Measure a model on held-out tasks: accuracy greedy and sampled, pass@k, majority vote, length, calls.

RUN is a folder that `selfteach train` made: its newest checkpoint is measured. METHOD is a method's name: the model that it would
start from (--model) is measured by the method's program, before any training. Besides the method's own program, every other way that
it can decode is measured: with a real search engine plugged in, say, for a model that was trained on its own memory alone.
"""
EXAMPLES = """examples:
  selfteach eval runs/ssrl-1 --tool search            only this way besides its own program
  selfteach eval runs/grpo-1 --k 256 --deep 20        pass@1..256 on 20 questions
  selfteach eval runs/grpo-1 --task chain_sum --set terms=5,6     questions that it was never trained on
  selfteach eval ssrl --model smollm2-135m --k 64                 what a model can do before any training

what comes out: tables on stdout, or with --json one line {"of": ..., "figures": {"accuracy": ..., "pass@64": ..., "accuracy+search": ...}}.
Figures of another way of decoding end in +WAY, those of a part of the questions in /hops=2. Nothing is written."""


def parser() -> Parser:
    made = Parser("eval", usage="selfteach eval RUN|METHOD [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("run", metavar="RUN|METHOD", help="a run's folder, or a method's name")
    made.add_argument("--tool", "--decode", metavar="WAY", help="measure only this way to decode besides the own program (search, ...)")
    made.add_argument("--k", type=int, metavar="N", help="samples of a question for pass@k (default: 64; 0: none)")
    made.add_argument("--tasks", type=int, metavar="N", help="held-out questions (default: 200)")
    made.add_argument("--deep", type=int, metavar="N", help="of these, how many are drawn k times (default: 48)")
    made.add_argument("--ways", type=int, metavar="N", help="samples of each question for the sampled accuracy (default: 4; 0: none)")
    made.add_argument("--json", action="store_true", help="only JSON on stdout, progress on stderr")
    made.add_argument("--task", metavar="T", help="another task than the run's own")
    made.add_argument("--set", metavar="KEY=VALUE", nargs="+", action="extend", help="options of the task")
    made.add_argument("--threads", type=int, metavar="N", help="threads of matrix products")
    group = made.add_argument_group("of a METHOD")
    group.add_argument("--model", metavar="M", help="a model's name or a folder in the Hub's layout (default: the task's own, or tiny)")
    group.add_argument("--use", metavar="FILE.py", nargs="+", action="extend", help="files of your own that register methods, tasks or blocks")
    group.add_argument("--seed", type=int, metavar="N", help="of everything drawn")
    group.add_argument("--max-tokens", type=int, metavar="N", help="longest turn (default: the task's own)")
    group.add_argument("--slots", type=int, metavar="N", help="sequences that the engine draws at once")
    return made


OWN = ("model", "use", "seed", "max_tokens", "slots")  # what only a model that has no run yet can be asked for


def run(command: str, words: Sequence[str]) -> int:
    if asks_help(words):
        parser().print_help()
        return 0
    given = vars(parser().read(words))
    for name in ("k", "tasks", "deep", "ways"):
        if given.get(name, 1) < (1 if name in ("tasks", "deep") else 0):
            raise BadValue(f"selfteach eval: --{name} must be {'1' if name in ('tasks', 'deep') else '0'} or more, not {given[name]}")
    from .. import api
    from ..analysis.figures import tables
    from .progress import watching
    from .show import show

    how = replace(api.Survey(), **{n: given[n] for n in ("tasks", "deep", "k", "ways") if n in given})
    what, named = _measured(given)
    knobs = None
    if isinstance(what, Path):
        api.threads(given.get("threads"))
        job = api.job_of(what)
        task = given.get("task", job.task if "set" in given else None)
        knobs = task_options(task, given.get("set", ())) if task else None
        if task and "task" not in given:
            knobs = {**job.knobs, **(knobs or {})}
    else:
        job, task = what, None
    with watching() as seen:
        figures = api.evaluate(what, how, seen, given.get("tool"), task, knobs)
    if given.get("json"):
        emit({"of": named, "figures": figures})
    else:
        show(tables({}, figures))
        note(f"\n{named}, {task or job.task}: {how.tasks} held-out questions at most; the standard error of a sampled accuracy is in --json")
    return 0


def _measured(given: Mapping[str, Any]) -> tuple[Any, str]:
    """(the folder of a run, or the job of a method; its name for people)."""
    folder = Path(given["run"])
    if (folder / "config.json").is_file():
        for name in OWN:
            if name in given:
                raise BadValue(f"selfteach eval: --{name.replace('_', '-')} goes with a METHOD; {folder} is a run, which has its own")
        return folder, str(folder)
    if folder.is_dir():
        raise BadValue(f"{folder}: holds no run (there is no config.json); eval takes the folder that selfteach train printed")
    from .. import api

    used = use_files(given.get("use", ()))
    if given["run"].partition(":")[0] not in registry.methods and ".py:" not in given["run"]:
        raise BadValue(f"selfteach eval: {given['run']} is neither a run's folder nor a method; {nearest(given['run'], registry.methods)}")
    entry, args, more = method_named(given["run"])
    task = given.get("task") or (entry.claim.task if entry.claim else "atlas")
    change = {n: given[n] for n in ("model", "seed", "max_tokens", "slots", "threads") if n in given}
    job = api.plan(entry.name, task, task_options(task, given.get("set", ())), args=args, use=(*used, *more), **change)
    return job, f"{entry.name} with {job.model}"
