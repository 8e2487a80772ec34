"""The commands `selfteach reproduce` and `selfteach ledger`: claims run as experiments, and the page of verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import BadValue, SelfteachError
from ..core.method import MethodEntry
from ..loop.settings import option_name
from .arguments import Parser, convert
from .common import add_model, add_run_options, measure_each, model_of, print_json, print_note, read_method, settings_of

ABOUT = """Run a method's claim as an experiment, and judge each of its checks: holds, does not hold here, or undecided.

A claim names its regime (a task with a model, a warm start and a tuned baseline), its arms (the method itself and its
baselines) and its checks, which are of three kinds. A premise asks whether the situation is there that the paper is
about; a mechanism, whether the idea does directly what it is for; an outcome, whether that helps. The verdict is that
of the outcomes, and is given only where premises and mechanisms hold.

All arms run with every seed; a seed decides a run's randomness, its warm start and its test questions. A check is a
difference, paired by seed, with its t interval and a smallest effect of interest. After 8, 12, 16 and 24 seeds the
checks are looked at, each time at a level such that all looks together err in 5 % of cases; when every one is decided
it stops. What the arms differ in beside the idea is printed first, and refused where the claim does not explain it.
"""
EXAMPLES = """examples:
  selfteach reproduce grpo                              # looks at 8, 12, 16 and 24 seeds, until all is decided
  selfteach reproduce ssrl --jobs 8 --hours 2           # eight runs at once; stops, and can go on, after two hours
  selfteach reproduce grpo dapo ppo                     # one claim after another
  selfteach reproduce --all --undecided --jobs 64       # every claim of the library that has no verdict yet
  selfteach reproduce grpo --seeds 3 --first-seed 0     # three tuning seeds, to see what it takes; decides nothing
  selfteach reproduce ssrl --full                       # the claim, and every other experiment of the paper, on a page
  selfteach reproduce ssrl --experiment sampling        # one of them
  selfteach reproduce grpo --tune lr=1e-4,3e-4 beta=0,0.04   # every arm with every combination, on seeds 0 and 1

what comes out: a table of checks with effect, interval, the effect that so many seeds could have found, and verdict;
what a run of each arm costs; and OUT/METHOD.json, from which `selfteach ledger` makes its page, with the counts of
right answers by question. Experiments are written to OUT/experiments, and with --full a page with pictures of them all.
With --json the one line of stdout is that JSON (--full: {"claim": ..., "experiments": {NAME: ...}}; of several claims
{METHOD: ...}). Of several, one that cannot be measured is said, and the next goes on. Runs are cached by
configuration and code, so that claims share their baselines and an interrupted reproduce continues; what an earlier
OUT/METHOD.json holds is not run again, so that it continues on another machine too. Reported seeds start at 200: tune
on 0 to 99. Settings that differ from the claim's are noted in the result. Needs the extra selfteach[claims]."""
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
    made = Parser("reproduce", usage="selfteach reproduce METHOD ... [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("method", metavar="METHOD", nargs="*", help="methods by name, or path/to/file.py:name")
    made.add_argument("--all", action="store_true", help="every method whose claim names a regime")
    made.add_argument("--undecided", action="store_true", help="of these, claims without a result as they stand now")
    made.add_argument("--seeds", type=int, metavar="N", help="look once, after N seeds (default: at 8, 12, 16, 24)")
    made.add_argument("--max-seeds", type=int, metavar="N", help="the most seeds to look at (default: 24)")
    made.add_argument("--first-seed", type=int, metavar="N", help="the first of them (default: as the claim says)")
    made.add_argument("--jobs", type=int, metavar="N", help="how many runs at once (default: as many as cores)")
    made.add_argument("--hours", type=float, metavar="H", help="begin no run after this many hours of wall-clock time")
    made.add_argument("--out", metavar="DIR", help="where METHOD.json is written (default: results, or results/tuning)")
    made.add_argument("--full", action="store_true", help="the claim and every experiment of the paper, and their page")
    made.add_argument("--experiment", metavar="NAME", help="one experiment of the paper, in place of the claim")
    made.add_argument(
        "--tune",
        nargs="*",
        metavar="NAME=V,V",
        help="tune the arms alike instead: these values of settings or hyper-parameters (default: those that the"
        " claim's regime searched), with --seeds tuning seeds (default: 2)",
    )
    made.add_argument("--arms", nargs="+", metavar="ARM", help="with --tune: these arms alone; the method is self")
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
    from .common import load_files

    used = load_files(given.get("use", ()))
    entries, files = _named(given)
    use = (*used, *files)
    if "tune" in given:
        return _tune(entries[0], given, use)
    if "arms" in given:
        raise BadValue("selfteach reproduce: --arms goes with --tune; a claim is measured with all of its arms")
    if len(entries) == 1 and not {"all", "undecided"} & given.keys():
        found = _measured(entries[0], given, use, given.get("hours"))
        if given.get("json"):
            print_json(found)
        return 0
    return _reproduce_several(entries, given, use)


def _named(given: Mapping[str, Any]) -> tuple[list[MethodEntry[...]], list[str]]:
    """The methods that are asked for, in the order of their regimes where it is all, and the files that they are in."""
    names: list[str] = given.get("method", [])
    alone = next((name for name in ("tune", "full", "experiment") if name in given), None)
    several = "all" in given or "undecided" in given or len(names) > 1
    if alone and several:
        raise BadValue(f"selfteach reproduce: --{alone} is of one method; name one alone")
    if "all" in given:
        if names:
            raise BadValue("selfteach reproduce: --all is every method; leave the names out")
        claims = [(e.claim.regime, name, e) for name, e in registry.methods.items() if e.claim and e.claim.regime]
        return [entry for _, _, entry in sorted(claims, key=lambda c: c[:2])], []
    if not names:
        raise BadValue("selfteach reproduce: which claim? name a method, or give --all; see selfteach reproduce --help")
    entries: list[MethodEntry[...]] = []
    use: list[str] = []
    for word in dict.fromkeys(names):
        entry, args, files = read_method(word)
        if args:
            raise BadValue(
                "selfteach reproduce: a claim is made with the method's own hyper-parameters;"
                " leave out what follows the name"
            )
        entries.append(entry)
        use += files
    return entries, use


def _reproduce_several(entries: Sequence[MethodEntry[...]], given: Mapping[str, Any], use: tuple[str, ...]) -> int:
    """One claim after another, each with its tables. What fails is said, and the exit code is then 1."""
    if "undecided" in given:
        from ..analysis.verdict import is_stored

        decided = _decided([Path(given.get("out", "results"))])
        entries = [entry for entry in entries if not is_stored(entry.claim, decided.get(entry.name))]
    named = {entry.name: entry for entry in entries}

    def measure(name: str, hours: float | None) -> dict[str, Any]:
        return _measured(named[name], given, use, hours)

    return measure_each(list(named), measure, bool(given.get("json")), given.get("hours"))


def _decided(folders: Sequence[Path]) -> dict[str, Any]:
    """The claims that have a result in a folder, or one that comes with the library, by their methods' names."""
    from ..analysis import claim_results

    results = claim_results.read_results(*folders, *claim_results.result_folders())
    return {result["method"]: result["claim"] for result in results if claim_results.is_decided(result)}


def _measured(
    entry: MethodEntry[...], given: Mapping[str, Any], use: tuple[str, ...], hours: float | None
) -> dict[str, Any]:
    """What a claim, or what is asked for of it, came to, as --json has it; printed where that is not asked for."""
    from .. import experiments
    from ..progress import show_progress

    out = Path(given.get("out", "results"))
    asked = _asked(entry, given)
    results: dict[str | None, dict[str, Any]] = {}
    for experiment in asked:
        with show_progress() as progress:
            results[experiment] = experiments.reproduce(
                entry.name,
                given.get("seeds"),
                out,
                given.get("first_seed"),
                progress,
                settings=settings_of(given, entry),
                model=model_of(given),
                use=use,
                jobs=given.get("jobs"),
                hours=hours,
                experiment=experiment,
                **({"max_seeds": given["max_seeds"]} if "max_seeds" in given else {}),
            )
        if not given.get("json"):
            show_result(results[experiment])
            print(f"result  {out / experiments.result_file(entry.name, experiment)}")
    if "full" not in given:
        return results[asked[0]]
    page = _write_experiments(entry, [out], out / "experiments")
    if not given.get("json"):
        print(f"page    {page}")
    return {"claim": results[None], "experiments": {n: r for n, r in results.items() if n is not None}}


def _asked(entry: MethodEntry[...], given: Mapping[str, Any]) -> list[str | None]:
    """What is to be measured: experiments by name, None for the claim."""
    if "full" in given and "experiment" in given:
        raise BadValue("selfteach reproduce: --full is the claim and every experiment; leave --experiment out")
    if ("full" in given or "experiment" in given) and not entry.experiments:
        with_some = [n for n, e in registry.methods.items() if e.experiments]
        raise BadValue(f"method {entry.name}: has a claim and no further experiments; {', '.join(with_some)} has")
    if "experiment" in given:
        entry.with_experiment(given["experiment"])  # which knows its name
        return [given["experiment"]]
    return [None, *entry.experiments] if "full" in given else [None]


def _write_experiments(
    entry: MethodEntry[...], folders: Sequence[str | Path], out: Path, docs: str | None = None
) -> Path:
    from ..analysis.experiments_page import write_experiments

    return write_experiments(entry.name, entry.experiments, folders, out / f"{entry.name}.md", docs)


def _tune(entry: MethodEntry[...], given: Mapping[str, Any], use: tuple[str, ...]) -> int:
    from .. import experiments
    from ..progress import show_progress

    alone = ("full", "experiment", "max_seeds", "hours", "model")
    unread = [option_name(n) for n in alone if n in given]
    unread += [option_name(n) for n in settings_of(given, entry)]
    if unread:
        raise BadValue(f"selfteach reproduce: {unread[0]} does not go with --tune; leave it out")
    out = given.get("out", "results/tuning")
    with show_progress() as progress:
        result = experiments.tune(
            entry.name,
            _read_grid(given["tune"]) or None,
            **({"seeds": given["seeds"]} if "seeds" in given else {}),
            first_seed=given.get("first_seed", 0),
            arms=given.get("arms", ()),
            jobs=given.get("jobs"),
            out=out,
            observer=progress,
            use=use,
        )
    if given.get("json"):
        print_json(result)
    else:
        _show_tuning(result)
        print(f"result  {Path(out) / (entry.name + '.json')}")
    return 0


def _read_grid(words: Sequence[str]) -> dict[str, list[Any]]:
    """Words as `lr=1e-4,3e-4` -> name -> values. Raises BadValue for a word of another form, or a name given twice."""
    grid: dict[str, list[Any]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name.isidentifier() and equals and text) or name in grid:
            raise BadValue(f"--tune {word}: give each name once, as lr=1e-4,3e-4")
        grid[name] = [convert(part, Any) for part in text.split(",")]
    return grid


def _show_tuning(result: Mapping[str, Any]) -> None:
    from ..analysis.figures import ReportTable
    from ..analysis.regime_evidence import best_of
    from .show import print_tables

    def percent(value: float | None) -> str:
        return "failed" if value is None else f"{100 * value:.1f}"

    rows: list[list[str]] = []
    for arm, found in result["arms"].items():
        top = best_of(found)
        for r in found:
            marks = ["stated"] * r["stated"] + ["best"] * (r is top)
            values = " ".join(f"{n}={v}" for n, v in r["values"].items())
            rows.append(
                [arm, values, percent(r["greedy"]), percent(r["sampled"]), percent(r["figure"]), ", ".join(marks)]
            )
    title = f"{result['method']} in {result['regime']}: accuracy after training, %, seeds {result['seeds']}"
    print()
    print_tables([ReportTable(title, ["arm", "values", "greedy", "sampled", "mean", ""], rows)])


def show_result(result: Mapping[str, Any]) -> None:
    """Print the checks of a claim with what was measured, and the verdict."""
    from ..analysis.claim_section import (
        COSTS,
        formatted_cost,
        formatted_detectable,
        formatted_effect,
        formatted_verdict,
        formatted_warnings,
    )
    from ..analysis.figures import ReportTable
    from ..progress import format_seconds
    from .show import print_tables

    rows = [
        [c["kind"], c["text"], formatted_effect(c), formatted_detectable(c), formatted_verdict(c)]
        for c in result["checks"]
    ]
    seeds = result["seeds"]
    about = f"{result['steps']} steps, " + (f"seeds {seeds[0]} to {seeds[-1]}" if seeds else "no seed complete")
    title = f"{result['method']} ({result['paper']}) on {result['regime'] or result['task']}: {about}"
    costs = [[name, *(formatted_cost(arm["cost"][c]) for c in COSTS)] for name, arm in result["arms"].items()]
    print()
    print_tables(
        [
            ReportTable(title, ["", "check", "difference [interval]", "could have found", "verdict"], rows),
            ReportTable("a run of each arm, median over seeds", ["", *COSTS.values()], costs),
        ]
    )
    if warned := formatted_warnings(result):
        print(f"warned of while they ran: {warned}")
    print(f"claim: {result['verdict']}   ({result['claim']['because']})")
    print(f"{len(result['arms'])} arms, {format_seconds(result['seconds'])} of runs on {result['cores']} cores")


def ledger_parser() -> Parser:
    """The options of `ledger`."""
    made = Parser("ledger", usage="selfteach ledger [options]", description=LEDGER, epilog=LEDGER_EXAMPLES)
    made.add_argument("--results", metavar="DIR", help="a folder of results (default: ./results and the library's)")
    made.add_argument("--out", metavar="FILE", help="the page (default: docs/ledger.md)")
    return made


def _ledger(words: Sequence[str]) -> int:
    from ..analysis import claim_results, ledger
    from ..analysis.regime_evidence import unadmitted_regimes

    given = vars(ledger_parser().read(words))
    if "results" in given and not Path(given["results"]).is_dir():
        raise BadValue(
            f"{given['results']}: no such folder; --results takes the folder that selfteach reproduce wrote to"
        )
    folders = [given["results"]] if "results" in given else claim_results.result_folders()
    out = given.get("out", "docs/ledger.md")
    try:
        file = ledger.write_page(folders, out, unadmitted_regimes())
        for name in claim_results.experimented(folders):
            _write_experiments(registry.methods.get(name), folders, file.parent / "ledger", "../")
    except OSError as error:
        raise SelfteachError(f"{out}: cannot be written ({error.strerror}); give another --out") from None
    verdicts = claim_results.verdicts(folders)
    if given.get("json"):
        print_json({"file": str(file), "verdicts": verdicts})
    else:
        print_note(f"{len(verdicts)} claims of {sum(1 for _, e in registry.methods.items() if e.claim)}")
        print(file)
    return 0
