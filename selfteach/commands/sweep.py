"""The command `selfteach sweep`: a method with every combination of some values, over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from ..core.errors import BadValue, unknown
from .arguments import Parser, convert, describe_type, format_value, type_of
from .common import (
    known_to,
    load_files,
    print_note,
    read_arm,
    split_arm,
)
from .compare import add_comparison, planned_arms, show_result

ABOUT = """Run a method with every combination of some values of hyper-parameters and settings, over seeds.

--grid takes NAME=VALUE,VALUE,... words; values that have commas themselves are divided by ; (betas=0.9,0.95;0.9,0.99).
A name that method and run both have is the method's; run.NAME is the run's. Every run is cached in OUT/runs by its
configuration and code, so a sweep that was stopped, or gets more values or seeds, runs only what is missing. A run that
fails is named, and the others go on.
"""
EXAMPLES = """examples:
  selfteach sweep grpo --task chain_sum --grid lr=1e-4,3e-4 beta=0,0.04 --seeds 3
  selfteach sweep grpo:rollouts=4 --task chain_sum --set terms=2,3 --grid lr=1e-4,3e-4,1e-3 --steps 60 --jobs 2
  selfteach sweep ppo --data mine.jsonl --reward mine.py:score --model smollm2-135m --grid lr=1e-6,1e-5 run.decay=cosine

what comes out: a table, best first, with the mean over seeds and its 95 % interval (Student's t) and the difference to
the best (paired by seed), a chart OUT/NAME.png and all figures in OUT/NAME.json; with --json that JSON is the one line
of stdout. The best of many looks better than it is: run it again with other seeds before you rely on it."""
MOST_ARMS = 1000


def parser() -> Parser:
    """The options of `sweep`."""
    made = Parser(
        "sweep", usage="selfteach sweep METHOD --grid NAME=V1,V2 ... [options]", description=ABOUT, epilog=EXAMPLES
    )
    made.add_argument(
        "method", metavar="METHOD", help="a method, with hyper-parameters and settings that all runs share"
    )
    made.add_argument(
        "--grid", metavar="NAME=V1,V2", nargs="+", action="extend", required=True, help="values to combine"
    )
    add_comparison(made, "runs/sweep")
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach sweep`; returns the exit code."""
    given = vars(parser().read(words))
    load_files(given.get("use", ()))  # which may register the method
    entry, args, settings, files = read_arm(given["method"])
    grid = read_grid(entry, given["grid"])
    for name in grid:
        if name in args or name in settings:
            raise BadValue(f"--grid: {name} is given by {given['method']} too; leave one out")
    asked: list[tuple[str, Any, Mapping[str, Any], Mapping[str, Any], Sequence[str]]] = []
    for values in product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        own, of_run = split_arm(entry, chosen)
        label = ",".join(f"{n}={format_value(v)}" for n, v in chosen.items())
        asked.append((label, entry, {**args, **own}, {**settings, **of_run}, files))
    arms, n = planned_arms(asked, given, "sweep"), given.get("seeds", 3)
    from .. import experiments  # with torch, once nothing is left to refuse
    from ..progress import show_progress

    print_note(f"{len(arms)} combinations, {n} seeds: {len(arms) * n} runs, of which finished ones are read back")
    with show_progress() as progress:
        result = experiments.compare(
            arms,
            range(n),
            given.get("out", "runs/sweep"),
            progress,
            given.get("jobs", 1),
            name="-".join([given["method"].rpartition("/")[2], *given["grid"]]),
            best_first=True,
        )
    show_result(result, bool(given.get("json")))
    return 0


def read_grid(entry: Any, words: Sequence[str]) -> dict[str, list[Any]]:
    """Name -> values of NAME=V1,V2 words. Raises BadValue, UnknownName."""
    known, grid = known_to(entry), dict[str, list[Any]]()
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise BadValue(f"--grid: {word!r} is not NAME=VALUE,VALUE")
        if name not in known:
            raise unknown(f"hyper-parameter of {entry.name} or setting", name, known)
        if name in grid:
            raise BadValue(f"--grid: {name} is given twice; give all its values in one word")
        if name.removeprefix("run.") in ("steps", "budget"):
            raise BadValue(f"--grid: {name} is what all combinations have alike; give --{name.removeprefix('run.')}")
        kind, values = type_of(known[name]), list[Any]()
        for piece in text.split(";" if ";" in text else ","):
            try:
                value = convert(piece.strip(), kind)
            except (ValueError, KeyError, OverflowError):
                raise BadValue(f"--grid: {name} must be {describe_type(kind)}, not {piece!r}") from None
            if value in values:
                raise BadValue(f"--grid: {name} has {format_value(value)} twice")
            values.append(value)
        grid[name] = values
    size = 1
    for values in grid.values():
        size *= len(values)
    if size > MOST_ARMS:
        raise BadValue(f"--grid: {size} combinations, and {MOST_ARMS} are the most; give fewer values")
    return grid
