"""selfteach eval: measure the newest checkpoint of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..core.errors import BadValue
from .arguments import Parser
from .common import asks_help, emit, note, task_options

ABOUT = """Measure the newest checkpoint of a run on held-out tasks: accuracy greedy and sampled, pass@k, majority vote, length, calls.

RUN is a folder that `selfteach train` made. Besides the run's own program, every other way that its method can decode is measured:
with a real search engine plugged in, say, for a model that was trained on its own memory alone.
"""
EXAMPLES = """examples:
  selfteach eval runs/ssrl-1 --tool search            only this way besides its own program
  selfteach eval runs/grpo-1 --k 256 --deep 20        pass@1..256 on 20 questions
  selfteach eval runs/grpo-1 --task chain_sum --set terms=5,6     questions that it was never trained on

what comes out: tables on stdout, or with --json one line {"folder": ..., "figures": {"accuracy": ..., "pass@64": ..., "accuracy+search": ...}}.
Figures of another way of decoding end in +WAY, those of a part of the questions in /hops=2. Nothing is written."""


def parser() -> Parser:
    made = Parser("eval", usage="selfteach eval RUN [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("run", metavar="RUN", help="a run's folder")
    made.add_argument("--tool", "--decode", metavar="WAY", help="measure only this way to decode besides the run's own program (search, ...)")
    made.add_argument("--k", type=int, metavar="N", help="samples of a question for pass@k (default: 64; 0: none)")
    made.add_argument("--tasks", type=int, metavar="N", help="held-out questions (default: 200)")
    made.add_argument("--deep", type=int, metavar="N", help="of these, how many are drawn k times (default: 48)")
    made.add_argument("--ways", type=int, metavar="N", help="samples of each question for the sampled accuracy (default: 4; 0: none)")
    made.add_argument("--task", metavar="T", help="another task than the run's own")
    made.add_argument("--set", metavar="KEY=VALUE", nargs="+", action="extend", help="options of the task")
    made.add_argument("--threads", type=int, metavar="N", help="threads of matrix products")
    made.add_argument("--json", action="store_true", help="only JSON on stdout, progress on stderr")
    return made


def run(command: str, words: Sequence[str]) -> int:
    if asks_help(words):
        parser().print_help()
        return 0
    given = vars(parser().read(words))
    for name in ("k", "tasks", "deep", "ways"):
        if given.get(name, 1) < (1 if name in ("tasks", "deep") else 0):
            raise BadValue(f"selfteach eval: --{name} must be {'1' if name in ('tasks', 'deep') else '0'} or more, not {given[name]}")
    folder = Path(given["run"])
    if not (folder / "config.json").is_file():
        raise BadValue(f"{folder}: holds no run (there is no config.json); eval takes the folder that selfteach train printed")
    from .. import api
    from ..analysis.figures import tables
    from .progress import watching
    from .show import show

    api.threads(given.get("threads"))
    job = api.job_of(folder)
    task = given.get("task", job.task if "set" in given else None)
    knobs = task_options(task, given.get("set", ())) if task else None
    if task and "task" not in given:
        knobs = {**job.knobs, **(knobs or {})}
    how = replace(api.Survey(), **{n: given[n] for n in ("tasks", "deep", "k", "ways") if n in given})
    with watching() as seen:
        figures = api.evaluate(folder, how, seen, given.get("tool"), task, knobs)
    if given.get("json"):
        emit({"folder": str(folder), "figures": figures})
    else:
        show(tables({}, figures))
        note(f"\n{folder}, {task or job.task}: {how.tasks} held-out questions at most; the standard error of a sampled accuracy is in --json")
    return 0
