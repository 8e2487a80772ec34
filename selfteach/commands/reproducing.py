"""selfteach reproduce and selfteach ledger: claims run as experiments, and the page of their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import BadValue, SelfteachError
from .arguments import Parser
from .common import add_run_options, add_what, asks_help, changes, emit, method_named, note

ABOUT = """Run a method's claim as an experiment and say of each of its checks: holds, does not hold here, or undecided.

A claim names its arms (the method itself and what it is measured against), the task, the budget that every arm gets the same of, and checks:
differences between figures with a margin. All arms run with every seed. A check holds where the whole 95 % interval (bootstrap over seeds,
paired by seed) satisfies it, does not hold where the whole interval violates it, and is undecided otherwise, and with fewer than three seeds.
"""
EXAMPLES = """examples:
  selfteach reproduce grpo --seeds 5
  selfteach reproduce ssrl --seeds 3 --out results

what comes out: a table of checks with effect, interval and verdict, and OUT/METHOD.json, from which `selfteach ledger` makes docs/ledger.md.
With --json the one line of stdout is that JSON. Runs are kept in the cache by content, so that claims share their baselines and an
interrupted reproduce goes on. Report seeds start at 100: tune on 0 to 99. Options that change a run are noted in the result."""
LEDGER = """Write the ledger: a page with every method whose claim was run, its verdict, and each check with its effect and interval.

It is made from RESULTS/*.json, which `selfteach reproduce` writes, and from nothing else.
"""
LEDGER_EXAMPLES = """examples:
  selfteach ledger
  selfteach ledger --results results --out docs/ledger.md

what comes out: the page, and its path on stdout (with --json: {"file": ..., "verdicts": {METHOD: VERDICT}})."""


def parser() -> Parser:
    made = Parser("reproduce", usage="selfteach reproduce METHOD [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("method", metavar="METHOD", help="a method's name, or path/to/file.py:name")
    made.add_argument("--seeds", type=int, metavar="N", help="how many seeds (default: 3)")
    made.add_argument("--first-seed", type=int, metavar="N", help="the first of them (default: 100)")
    made.add_argument("--out", metavar="DIR", help="where METHOD.json is written (default: results)")
    made.add_argument("--json", action="store_true", help="only JSON on stdout, progress on stderr")
    add_what(made, task=False)
    add_run_options(made)
    return made


def run(command: str, words: Sequence[str]) -> int:
    return _ledger(words) if command == "ledger" else _reproduce(words)


def _reproduce(words: Sequence[str]) -> int:
    if asks_help(words):
        parser().print_help()
        return 0
    given = vars(parser().read(words))
    if "seed" in given or "budget" in given:
        raise BadValue(
            "selfteach reproduce: takes --seeds N and --first-seed N; a claim has its own budget, so --seed and --budget have no place here"
        )
    from .. import experiment
    from .common import use_files
    from .progress import watching

    used = use_files(given.get("use", ()))
    entry, args, files = method_named(given["method"])
    if args:
        raise BadValue("selfteach reproduce: a claim is made with the method's own hyper-parameters; leave out what follows the name")
    more = {k: v for k, v in changes(given).items() if k != "steps"}
    if used or files:
        more["use"] = (*used, *files)
    out = given.get("out", "results")
    with watching() as seen:
        result = experiment.reproduce(
            entry.name, given.get("seeds", 3), given.get("steps"), out, given.get("first_seed", experiment.FIRST_SEED), seen, **more
        )
    if given.get("json"):
        emit(result)
    else:
        show_result(result)
        print(f"result  {Path(out) / (entry.name + '.json')}")
    return 0


def show_result(result: Mapping[str, Any]) -> None:
    """The checks of a claim with what was measured, and the verdict."""
    from ..analysis.figures import Table
    from ..analysis.ledger import measured
    from .show import show, time_of

    rows = [[c["text"], measured(c), c["verdict"] + (f" ({c['why']})" if c["why"] else "")] for c in result["checks"]]
    seeds = result["seeds"]
    title = f"{result['method']} ({result['paper']}) on {result['task']}: {result['steps']} steps, seeds {seeds[0]} to {seeds[-1]}"
    print()
    show([Table(title, ["check", "difference [95 %]", "verdict"], rows)])
    print(f"claim: {result['verdict']}   ({result['claim']['because']})")
    print(f"{len(result['arms'])} arms, {time_of(result['seconds'])} of runs on {result['cores']} cores")


def result_folders() -> list[Path]:
    """Where results may lie: the working folder's own, then the library's."""
    return list(dict.fromkeys(f.resolve() for f in (Path("results"), Path(__file__).parents[2] / "results")))


def _ledger(words: Sequence[str]) -> int:
    made = Parser("ledger", usage="selfteach ledger [options]", description=LEDGER, epilog=LEDGER_EXAMPLES)
    made.add_argument("--results", metavar="DIR", help="where the results lie (default: results)")
    made.add_argument("--out", metavar="FILE", help="the page (default: docs/ledger.md)")
    made.add_argument("--json", action="store_true", help="only JSON on stdout")
    if asks_help(words):
        made.print_help()
        return 0
    from ..analysis import ledger

    given = vars(made.read(words))
    results = Path(given.get("results", "results"))
    if "results" in given and not results.is_dir():
        raise BadValue(f"{results}: no such folder; --results takes the folder that selfteach reproduce wrote to")
    try:
        file = ledger.write(results, given.get("out", "docs/ledger.md"))
    except OSError as error:
        raise SelfteachError(f"{given.get('out', 'docs/ledger.md')}: cannot be written ({error.strerror}); give another --out") from None
    found = ledger.verdicts([results])
    if given.get("json"):
        emit({"file": str(file), "verdicts": found})
    else:
        note(f"{len(found)} claims of {sum(1 for _, e in registry.methods.items() if e.claim)}")
        print(file)
    return 0
