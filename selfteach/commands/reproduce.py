"""The commands `selfteach reproduce` and `selfteach ledger`: claims run as experiments, and the page of verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import BadValue, SelfteachError
from .arguments import Parser
from .common import add_model, add_run_options, print_json, print_note, read_method, settings_of

ABOUT = """Run a method's claim as an experiment, and judge each of its checks: holds, does not hold here, or undecided.

A claim names its arms (the method itself and its baselines), the task, the budget, which is the same for every arm, and
checks: differences between figures with a margin. All arms run with every seed. A check holds where the whole 95 %
interval (bootstrap over seeds, paired by seed) satisfies it, does not hold where the whole interval violates it, and is
undecided otherwise and with fewer than three seeds.
"""
EXAMPLES = """examples:
  selfteach reproduce grpo --seeds 5
  selfteach reproduce ssrl --seeds 3 --out results

what comes out: a table of checks with effect, interval and verdict, and OUT/METHOD.json, from which `selfteach ledger`
makes its page. With --json the one line of stdout is that JSON. Runs are cached by
configuration and code, so that claims share their baselines and an interrupted reproduce continues. Reported seeds
start at 100: tune on 0 to 99. Settings that differ from the claim's are noted in the result."""
LEDGER = """Write the ledger: a page with every method whose claim was run, its verdict, and each check with its effect
and interval.

It is made from results of `selfteach reproduce` alone: those in ./results, and of other methods those that come with
the library; or those in --results and no others.
"""
LEDGER_EXAMPLES = """examples:
  selfteach ledger
  selfteach ledger --results results --out docs/ledger.md

what comes out: the page, and its path on stdout (with --json: {"file": ..., "verdicts": {METHOD: VERDICT}})."""


def parser() -> Parser:
    """The options of `reproduce`."""
    made = Parser("reproduce", usage="selfteach reproduce METHOD [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("method", metavar="METHOD", help="a method's name, or path/to/file.py:name")
    made.add_argument("--seeds", type=int, metavar="N", help="how many seeds (default: 3)")
    made.add_argument("--first-seed", type=int, metavar="N", help="the first of them (default: 100)")
    made.add_argument("--out", metavar="DIR", help="where METHOD.json is written (default: results)")
    add_model(made)
    add_run_options(made)
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach reproduce` or `selfteach ledger`; returns the exit code."""
    return _ledger(words) if command == "ledger" else _reproduce(words)


def _reproduce(words: Sequence[str]) -> int:
    given = vars(parser().read(words))
    if {"seed", "budget"} & settings_of(given).keys():
        raise BadValue(
            "selfteach reproduce: takes --seeds N and --first-seed N, and a claim has its own budget; leave --seed"
            " and --budget out"
        )
    from .. import experiment
    from .common import load_files
    from .progress import show_progress

    used = load_files(given.get("use", ()))
    entry, args, files = read_method(given["method"])
    if args:
        raise BadValue(
            "selfteach reproduce: a claim is made with the method's own hyper-parameters;"
            " leave out what follows the name"
        )
    out = given.get("out", "results")
    with show_progress() as progress:
        result = experiment.reproduce(
            entry.name,
            given.get("seeds", 3),
            out,
            given.get("first_seed", experiment.FIRST_SEED),
            progress,
            settings=settings_of(given, entry),
            model=given.get("model"),
            use=(*used, *files),
        )
    if given.get("json"):
        print_json(result)
    else:
        show_result(result)
        print(f"result  {Path(out) / (entry.name + '.json')}")
    return 0


def show_result(result: Mapping[str, Any]) -> None:
    """Print the checks of a claim with what was measured, and the verdict."""
    from ..analysis.figures import ReportTable
    from ..analysis.ledger import formatted_effect, formatted_verdict
    from .show import format_seconds, print_tables

    rows = [[c["text"], formatted_effect(c), formatted_verdict(c)] for c in result["checks"]]
    seeds = result["seeds"]
    about = f"{result['steps']} steps, seeds {seeds[0]} to {seeds[-1]}"
    title = f"{result['method']} ({result['paper']}) on {result['task']}: {about}"
    print()
    print_tables([ReportTable(title, ["check", "difference [95 %]", "verdict"], rows)])
    print(f"claim: {result['verdict']}   ({result['claim']['because']})")
    print(f"{len(result['arms'])} arms, {format_seconds(result['seconds'])} of runs on {result['cores']} cores")


def _ledger(words: Sequence[str]) -> int:
    made = Parser("ledger", usage="selfteach ledger [options]", description=LEDGER, epilog=LEDGER_EXAMPLES)
    made.add_argument("--results", metavar="DIR", help="a folder of results (default: ./results and the library's)")
    made.add_argument("--out", metavar="FILE", help="the page (default: docs/ledger.md)")
    from ..analysis import ledger

    given = vars(made.read(words))
    if "results" in given and not Path(given["results"]).is_dir():
        raise BadValue(
            f"{given['results']}: no such folder; --results takes the folder that selfteach reproduce wrote to"
        )
    folders = [given["results"]] if "results" in given else ledger.result_folders()
    out = given.get("out", "docs/ledger.md")
    try:
        file = ledger.write_page(folders, out)
    except OSError as error:
        raise SelfteachError(f"{out}: cannot be written ({error.strerror}); give another --out") from None
    verdicts = ledger.verdicts(folders)
    if given.get("json"):
        print_json({"file": str(file), "verdicts": verdicts})
    else:
        print_note(f"{len(verdicts)} claims of {sum(1 for _, e in registry.methods.items() if e.claim)}")
        print(file)
    return 0
