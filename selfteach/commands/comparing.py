"""selfteach compare: methods beside each other on one task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.errors import BadValue
from .arguments import Parser
from .common import add_run_options, add_what, asks_help, changes, emit, method_named, note, task_options, use_files

ABOUT = """Run several methods on one task over several seeds, with the same number of steps for all, and put them beside each other.

METHOD is a name, a name with hyper-parameters (grpo:beta=0.04,rollouts=16), or path/to/file.py:name. Every run is kept in OUT/runs by
the content of its configuration: what is finished is read back, so an interrupted comparison goes on when it is given again.
"""
EXAMPLES = """examples:
  selfteach compare grpo rloo dr_grpo --task chain_sum --seeds 5
  selfteach compare grpo grpo:beta=0.04 grpo:clip=0.1 --task chain_sum --set terms=2,3 --steps 60 --seeds 3

what comes out: a table with the mean over seeds and its 95 % interval (bootstrap), the difference of each method's accuracy to the first's
(paired by seed), a chart OUT/TASK-METHODS.png and all figures in OUT/TASK-METHODS.json. With --json that JSON is the one line of stdout.
Seeds are 0, 1, ...; every method starts from the same warm start."""


def parser() -> Parser:
    made = Parser("compare", usage="selfteach compare METHOD [METHOD ...] [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("methods", metavar="METHOD", nargs="+", help="methods to compare")
    add_what(made)
    made.add_argument("--seeds", type=int, metavar="N", help="how many seeds (default: 3)")
    made.add_argument("--out", metavar="DIR", help="where runs and results lie (default: runs/compare)")
    made.add_argument("--json", action="store_true", help="only JSON on stdout, progress on stderr")
    add_run_options(made)
    return made


def run(command: str, words: Sequence[str]) -> int:
    if asks_help(words):
        parser().print_help()
        return 0
    given = vars(parser().read(words))
    if "seed" in given:
        raise BadValue("selfteach compare: takes --seeds N (seeds 0 to N-1), not --seed")
    if given.get("seeds", 3) < 1:
        raise BadValue(f"selfteach compare: --seeds must be 1 or more, not {given['seeds']}")
    from .. import api, experiment
    from ..analysis import contrast
    from .progress import watching
    from .show import show

    used = use_files(given.get("use", ()))
    chosen = [(word, *method_named(word)) for word in given["methods"]]
    first = chosen[0][1]
    task = given.get("task") or (first.claim.task if first.claim else "atlas")
    knobs = task_options(task, given.get("set", ()))
    more: dict[str, Any] = {"survey_k": 0, **changes(given)}
    if "steps" not in more:
        more["steps"] = api.plan(first.name, task, knobs).settings.steps
    arms = [
        experiment.Arm(arm_name(word), api.plan(entry.name, task, knobs, args=args, use=(*used, *files), **more))
        for word, entry, args, files in chosen
    ]
    with watching() as seen:
        result = experiment.compare(arms, range(given.get("seeds", 3)), given.get("out", "runs/compare"), seen)
    if given.get("json"):
        emit(result)
    else:
        show([contrast.table(result["arms"], f"{task}, {more['steps']} steps, seeds 0 to {len(result['seeds']) - 1}")])
        print(f"chart    {result['chart']}\nfigures  {result['file']}")
        if len(result["seeds"]) < 3:
            note("with fewer than three seeds the intervals say little; --seeds 5 goes on from these runs")
    return 0


def arm_name(word: str) -> str:
    """What a method is called in the table: its word, without the folder of its file."""
    return word.rpartition("/")[2]
