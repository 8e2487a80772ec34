"""The command `selfteach compare`: methods compared on one task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.errors import BadValue
from .arguments import Parser
from .common import (
    add_model,
    add_run_options,
    add_sampling,
    add_task,
    data_arguments,
    load_files,
    model_of,
    print_json,
    print_note,
    read_method,
    read_task_options,
    settings_of,
    task_of,
)

ABOUT = """Run several methods on one task with several seeds, for the same number of steps, and compare them.

METHOD is a name, a name with hyper-parameters (grpo:beta=0.04,rollouts=16), or path/to/file.py:name. Every run is
cached in OUT/runs by its configuration and code: a finished run is read back, so an interrupted comparison continues
when the command is given again.
"""
EXAMPLES = """examples:
  selfteach compare grpo rloo dr_grpo --task chain_sum --seeds 5
  selfteach compare grpo rloo --data mine.jsonl --reward mine.py:score --model smollm2-135m
  selfteach compare grpo grpo:beta=0.04 grpo:clip=0.1 --task chain_sum --set terms=2,3 --steps 60 --seeds 3

what comes out: a table with the mean over seeds and its 95 % interval (Student's t), the difference of each method's
accuracy to the first's (paired by seed), a chart OUT/TASK-METHODS.png and all figures in OUT/TASK-METHODS.json. With
--json that JSON is the one line of stdout. Seeds are 0, 1, ...; every method starts from the same warm start."""

MISSING = "none: the package matplotlib is not installed; pip install 'selfteach[plot]'"


def parser() -> Parser:
    """The options of `compare`."""
    made = Parser(
        "compare", usage="selfteach compare METHOD [METHOD ...] [options]", description=ABOUT, epilog=EXAMPLES
    )
    made.add_argument("methods", metavar="METHOD", nargs="+", help="methods to compare")
    add_task(made)
    add_sampling(made)
    add_model(made)
    made.add_argument("--seeds", type=int, metavar="N", help="how many seeds (default: 3)")
    made.add_argument("--jobs", type=int, metavar="N", help="how many runs at once (default: 1)")
    made.add_argument("--out", metavar="DIR", help="folder of runs and results (default: runs/compare)")
    add_run_options(made)
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach compare`; returns the exit code."""
    given = vars(parser().read(words))
    if "seed" in settings_of(given):
        raise BadValue("selfteach compare: takes --seeds N (seeds 0 to N-1), not --seed")
    if given.get("seeds", 3) < 1:
        raise BadValue(f"selfteach compare: --seeds must be 1 or more, not {given['seeds']}")
    from .. import experiments
    from ..analysis import comparison
    from ..configuration import plan
    from ..progress import show_progress
    from .show import print_tables

    used = load_files(given.get("use", ()))
    methods = [(word, *read_method(word)) for word in given["methods"]]
    first = methods[0][1]
    task, data = task_of(given, first.claim), data_arguments(given)
    task_options = read_task_options(task, given.get("set", ()))
    if "steps" not in settings_of(given):
        given["run.steps"] = plan(first.name, task, task_options, **data).settings.steps
    arms: list[experiments.Arm] = []
    for word, entry, args, files in methods:
        settings = {"final_eval_k": 0, **settings_of(given, entry)}
        more: dict[str, Any] = {"model": model_of(given), "use": (*used, *files), **data}
        run_config = plan(entry.name, task, task_options, args=args, settings=settings, **more)
        arms.append(experiments.Arm(arm_name(word), run_config))
    with show_progress() as progress:
        seeds, out = range(given.get("seeds", 3)), given.get("out", "runs/compare")
        result = experiments.compare(arms, seeds, out, progress, given.get("jobs", 1))
    if given.get("json"):
        print_json(result)
    else:
        title = f"{task}, {result['steps']} steps, seeds 0 to {len(result['seeds']) - 1}"
        print_tables([comparison.table(result["arms"], title)])
        print(f"chart    {result['chart'] or MISSING}\nfigures  {result['file']}")
        if len(result["seeds"]) < 3:
            print_note("with fewer than three seeds the intervals say little; --seeds 5 reuses these runs")
    return 0


def arm_name(word: str) -> str:
    """A method's name in the table: its word on the command line, without the folder of its file."""
    return word.rpartition("/")[2]
