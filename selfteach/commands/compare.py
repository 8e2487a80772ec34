"""The command `selfteach compare`: methods compared on one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    read_arm,
    read_task_options,
    settings_of,
    task_of,
)

if TYPE_CHECKING:
    from ..configuration import RunConfig
    from ..experiments import Arm

ABOUT = """Run several methods on one task with several seeds, for the same number of steps, and compare them.

METHOD is a name, a name with hyper-parameters and settings (grpo:beta=0.04,lr=3e-4), or path/to/file.py:name. Every
run is cached in OUT/runs by its configuration and code: a finished run is read back, so an interrupted comparison
continues when the command is given again.
"""
EXAMPLES = """examples:
  selfteach compare grpo rloo dr_grpo --task chain_sum --seeds 5
  selfteach compare grpo rloo --data mine.jsonl --reward mine.py:score --model smollm2-135m
  selfteach compare grpo:lr=1e-4 grpo:lr=3e-4,beta=0.04 --task chain_sum
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
    add_comparison(made, "runs/compare")
    return made


def add_comparison(made: Parser, out: str) -> None:
    """Add what several arms share: task, sampling, model, seeds, runs at once, folder, settings."""
    add_task(made)
    add_sampling(made)
    add_model(made)
    made.add_argument("--seeds", type=int, metavar="N", help="how many seeds (default: 3)")
    made.add_argument("--jobs", type=int, metavar="N", help="how many runs at once (default: 1)")
    made.add_argument("--out", metavar="DIR", help=f"folder of runs and results (default: {out})")
    add_run_options(made)


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach compare`; returns the exit code."""
    given = vars(parser().read(words))
    load_files(given.get("use", ()))  # which may register the methods
    asked = [(arm_name(word), *read_arm(word)) for word in given["methods"]]
    arms = planned_arms(asked, given, "compare")
    from .. import experiments  # with torch, once nothing is left to refuse
    from ..progress import show_progress

    with show_progress() as progress:
        seeds, out = range(given.get("seeds", 3)), given.get("out", "runs/compare")
        result = experiments.compare(arms, seeds, out, progress, given.get("jobs", 1))
    show_result(result, bool(given.get("json")))
    return 0


def planned_arms(
    asked: Sequence[tuple[str, Any, Mapping[str, Any], Mapping[str, Any], Sequence[str]]],
    given: dict[str, Any],
    command: str,
) -> list[Arm]:
    """The arms (name, method, hyper-parameters, settings, files used) of a command line, all for as many steps as the
    first. Raises SelfteachError.
    """
    from ..configuration import plan

    if "seed" in settings_of(given):
        raise BadValue(f"selfteach {command}: takes --seeds N (seeds 0 to N-1), not --seed")
    if given.get("seeds", 3) < 1:
        raise BadValue(f"selfteach {command}: --seeds must be 1 or more, not {given['seeds']}")
    used = load_files(given.get("use", ()))
    first = asked[0][1]
    task, data = task_of(given, first), data_arguments(given)
    task_options = read_task_options(task, given.get("set", ()))
    if "steps" not in settings_of(given):
        given["run.steps"] = plan(first.name, task, task_options, **data).settings.steps
    planned: list[tuple[str, RunConfig]] = []
    for name, entry, args, own, files in asked:
        settings = {"final_eval_k": 0, **settings_of(given, entry), **own}
        more: dict[str, Any] = {"model": model_of(given), "use": (*used, *files), **data}
        planned.append((name, plan(entry.name, task, task_options, args=args, settings=settings, **more)))
    from ..experiments import Arm

    return [Arm(name, run_config) for name, run_config in planned]


def show_result(result: Mapping[str, Any], as_json: bool) -> None:
    """Print what `experiments.compare` found."""
    from ..analysis import comparison
    from .show import print_tables

    if as_json:
        print_json(result)
        return
    seeds = len(result["seeds"])
    title = f"{result['task']}, {result['steps']} steps, seeds 0 to {seeds - 1}"
    print_tables([comparison.table(result["arms"], title)])
    for run, error in result.get("failed", {}).items():
        print_note(f"{run} failed: {error}")
    print(f"chart    {result['chart'] or MISSING}\nfigures  {result['file']}")
    if seeds < 3:
        print_note("with fewer than three seeds the intervals say little; --seeds 5 reuses these runs")


def arm_name(word: str) -> str:
    """A method's name in the table: its word on the command line, without the folder of its file."""
    return word.rpartition("/")[2]
