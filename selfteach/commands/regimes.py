"""The command `selfteach regimes`: what regimes there are, what was measured of them, and measuring one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import BadValue, SelfteachError
from ..core.regime import Regime
from .arguments import Parser
from .common import load_files, measure_each, print_json, print_note

ABOUT = """List the regimes, where claims are measured; show one; or measure one and say whether it is admitted.

A regime is a task with its options, a model, a warm start, a budget and a tuned baseline, under one name. It has to be
seen to be one: with --measure it is run on tuning seeds, and what was found is kept as a result.

  search    every value of its search with two seeds: is the baseline tuned?
  baseline  eight seeds, at least ten evaluations on the way: does it learn, or show the failure that it is for?
  start     the policy before training: greedy, sampled, pass@k, and every way of answering forced by its first words,
            which gives a ceiling (the best way) and a floor (the worst)
  control   eight seeds with rewards that are shuffled: is anything learned from nothing?

It is admitted where the baseline gains 20 points, greedy and sampled (or shows its failure), no value of the search is
better by more than 2 points than what is stated, and the control rises by 3 points at most, with an interval that
reaches 0.
"""
EXAMPLES = """examples:
  selfteach regimes                               # all, with what is known of them
  selfteach regimes NAME                          # one: settings, ways, evidence
  selfteach regimes NAME --measure --jobs 4       # run it on seeds 0 to 7; what was interrupted goes on
  selfteach regimes --all --measure --jobs 64     # each that was not measured as it is defined now
  selfteach regimes --page docs/regimes.md        # the page of all, with pictures

what comes out: a table; with --json a list of {"name", "doc", "task", "model", "status", "why", "greedy", "sampled",
"seconds"}, of one NAME that object with its "definition" and "evidence". --measure writes OUT/NAME.json (also after
each of its parts) and prints what it found; with --json the one line of stdout is that JSON. Results are looked for in
./results/regimes, then in those that come with the library (selfteach/results/regimes). --measure needs the extra
selfteach[claims], --page selfteach[plot]."""
ACCURACIES = ("greedy", "sampled")
MEASURING = ("jobs", "seeds", "first_seed", "out")  # options that say how to measure


def parser() -> Parser:
    """The options of `regimes`."""
    made = Parser("regimes", usage="selfteach regimes [NAME] [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("name", metavar="NAME", nargs="?", help="one regime")
    made.add_argument("--measure", action="store_true", help="run NAME on tuning seeds, and judge it")
    made.add_argument("--all", action="store_true", help="with --measure: each that was not measured as it is defined")
    made.add_argument("--seeds", type=int, metavar="N", help="of the baseline (default: 8; fewer admit nothing)")
    made.add_argument("--first-seed", type=int, metavar="N", help="the first of them (default: 0; all lie below 100)")
    made.add_argument("--jobs", type=int, metavar="N", help="how many runs at once (default: as many as cores)")
    made.add_argument("--out", metavar="DIR", help="where --measure writes NAME.json (default: results/regimes)")
    made.add_argument("--page", metavar="FILE.md", help="write the page of all regimes, and pictures beside it")
    made.add_argument("--results", metavar="DIR", help="a folder of results (default: see below)")
    made.add_argument(
        "--use", metavar="FILE.py", nargs="+", action="extend", help="files of your own that register regimes"
    )
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach regimes`; returns the exit code."""
    given = vars(parser().read(words))
    _check(given)
    used = load_files(given.get("use", ()))
    if "all" in given:
        return _measure_all(given, used)
    home: Regime | None = registry.regimes.get(given["name"]) if "name" in given else None
    if home is not None and given.get("measure"):
        result = _measure(home, given, used)
        if given.get("json"):
            print_json(result)
        return 0
    if "results" in given and not Path(given["results"]).is_dir():
        raise BadValue(
            f"{given['results']}: no such folder; --results takes the folder that selfteach regimes --measure wrote to"
        )
    from ..analysis.regime_evidence import read_evidence

    evidence = read_evidence([given["results"]] if "results" in given else None)
    if home is not None:
        _show(home, evidence.get(home.name), bool(given.get("json")))
    elif "page" in given:
        _page(given, evidence)
    else:
        _list(evidence, bool(given.get("json")))
    return 0


def _check(given: Mapping[str, Any]) -> None:
    """Raise BadValue for options that do not go together."""
    own = "selfteach regimes"
    if given.get("measure") and "name" not in given and "all" not in given:
        raise BadValue(f"{own}: --measure needs the NAME of a regime, or --all")
    if "all" in given and ("name" in given or not given.get("measure")):
        raise BadValue(f"{own}: --all goes with --measure and without a NAME")
    if "page" in given and ("name" in given or given.get("measure")):
        raise BadValue(f"{own}: --page is of all regimes; leave {given.get('name') or '--measure'} out")
    if given.get("measure") and "results" in given:
        raise BadValue(f"{own}: --measure writes to --out DIR; leave --results out")
    for name in MEASURING:
        if name in given and not given.get("measure"):
            raise BadValue(f"{own}: --{name.replace('_', '-')} needs a NAME and --measure")


def _all() -> list[Regime]:
    return [home for _, home in registry.regimes.items()]


def _measure_all(given: Mapping[str, Any], used: Sequence[str]) -> int:
    """Measure each regime that has no evidence as it is defined; what fails is said, and the exit code is then 1."""
    from ..analysis.regime_evidence import CHANGED, NOT_MEASURED, read_evidence, regime_folders, status

    evidence = read_evidence([*([given["out"]] if "out" in given else []), *regime_folders()])
    open_ones = [home for home in _all() if status(home, evidence.get(home.name)) in (CHANGED, NOT_MEASURED)]
    named = {home.name: home for home in open_ones}
    return measure_each(list(named), lambda name, _: _measure(named[name], given, used), bool(given.get("json")))


def _measure(home: Regime, given: Mapping[str, Any], used: Sequence[str]) -> dict[str, Any]:
    """What a regime came to, printed where JSON is not asked for."""
    from .. import experiments
    from ..progress import show_progress

    out = given.get("out", "results/regimes")
    more = {name: given[name] for name in ("seeds", "first_seed") if name in given}
    with show_progress() as progress:
        result = experiments.measure_regime(
            home.name, jobs=given.get("jobs"), out=out, observer=progress, use=used, **more
        )
    if not given.get("json"):
        print()
        _show(home, result, False)
        print(f"result  {Path(out) / (home.name + '.json')}")
    return result


def regime_summary(home: Regime, found: Mapping[str, Any] | None) -> dict[str, Any]:
    """A regime as the list in JSON has it; accuracies are (start, end)."""
    from ..analysis.regime_evidence import status

    learned = (found or {}).get("baseline")
    accuracy = {k: [learned[when][k] for when in ("before", "after")] if learned else None for k in ACCURACIES}
    return {
        "name": home.name,
        "doc": home.doc.partition("\n")[0],
        "shows": home.shows,
        "task": home.task,
        "model": home.model,
        "status": status(home, found),
        "why": (found or {}).get("why"),
        **accuracy,
        "seconds": learned["cost"]["seconds"] if learned else None,
    }


def _list(evidence: Mapping[str, Mapping[str, Any]], as_json: bool) -> None:
    from ..analysis.regime_page import listing
    from .show import print_tables

    homes = _all()
    if as_json:
        return print_json([regime_summary(home, evidence.get(home.name)) for home in homes])
    print_tables([listing(homes, evidence)])


def _show(home: Regime, found: Mapping[str, Any] | None, as_json: bool) -> None:
    from ..analysis.figures import ReportTable
    from ..analysis.regime_evidence import definition
    from ..analysis.regime_page import evidence_tables, regime_rows
    from .show import print_tables

    about = regime_summary(home, found)
    if as_json:
        return print_json({**about, "doc": home.doc, "definition": definition(home), "evidence": found})
    print(f"{home.doc}\n")
    rows = [*regime_rows(home), *([["shows", home.shows]] if home.shows else [])]
    print_tables([ReportTable("", ["", home.name], rows), *(evidence_tables(found) if found else [])])
    print(about["status"] + (f": {found['why']}" if found else f": selfteach regimes {home.name} --measure"))


def _page(given: Mapping[str, Any], evidence: Mapping[str, Mapping[str, Any]]) -> None:
    from ..analysis.regime_page import write_page

    homes, file = _all(), given["page"]
    try:
        written = write_page(homes, evidence, file)
    except OSError as error:
        raise SelfteachError(f"{file}: cannot be written ({error.strerror}); give another --page") from None
    summaries = {home.name: regime_summary(home, evidence.get(home.name))["status"] for home in homes}
    if given.get("json"):
        print_json({"file": str(written), "regimes": summaries})
    else:
        print_note(f"{len(homes)} regimes, {sum(s == 'admitted' for s in summaries.values())} admitted")
        print(written)
