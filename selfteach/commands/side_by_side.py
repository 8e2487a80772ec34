"""The command `selfteach side-by-side`: the methods of a family on one set of held-out questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.claim import FIRST_SEED
from ..core.errors import BadValue, SelfteachError, unknown
from .arguments import Parser
from .common import add_run_options, model_of, print_json, read_task_options, settings_of

ABOUT = """Train the published methods of a family alike, each on as many sampled tokens, and measure all on the same
held-out questions: accuracy (exact match and F1), searches, tokens, needless and missed searches.

The family says the task, the model and the warm start, in a regime (search: search_side_by_side; search_smollm2, which
is four of them on SmolLM2: real_search); each method has its own demonstrations of the same questions. What cannot run
there is named with the reason. All methods run with every seed, a seed after another; the result is written after each.
"""
EXAMPLES = """examples:
  selfteach side-by-side search --seeds 8 --out selfteach/results/families      # stopped at any time, it goes on
  selfteach side-by-side search --seeds 8 --hours 2                             # begins no run after two hours
  selfteach side-by-side search --methods ssrl search_r1 --seeds 1 --tokens 20000   # two of them, a glance
  selfteach side-by-side search --page docs/search_methods.md                   # the page of what was measured

what comes out: a table with mean and 95 % interval over seeds (of fewer than three: the lowest and the highest), and
OUT/FAMILY.json, also after each seed; with --json that JSON is the one line of stdout. Runs are cached by configuration
and code, so that an interrupted one continues and more seeds add to it; what an earlier OUT/FAMILY.json holds is not
run again, on another machine either. --page runs nothing: it writes FILE.md, and a picture beside it, from
OUT/FAMILY.json or, where there is none, from the result that comes with the library, and names what was not measured
(with --json: {"file": ..., "methods": [...]}). Needs the extra selfteach[claims], --page selfteach[plot]."""
RUNNING = ("methods", "seeds", "first_seed", "tokens", "jobs", "hours", "set", "model")


def parser() -> Parser:
    """The options of `side-by-side`."""
    made = Parser("side-by-side", usage="selfteach side-by-side FAMILY [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("family", metavar="FAMILY", help="the family: search, search_smollm2")
    made.add_argument("--methods", metavar="NAME", nargs="+", help="these of its methods (default: all)")
    made.add_argument("--seeds", type=int, metavar="N", help="how many seeds (default: 8)")
    made.add_argument("--first-seed", type=int, metavar="N", help="the first of them (default: 200)")
    made.add_argument("--tokens", type=int, metavar="N", help="that each run samples (default: the family's)")
    made.add_argument("--jobs", type=int, metavar="N", help="how many runs at once (default: as many as cores)")
    made.add_argument("--hours", type=float, metavar="H", help="begin no run after this many hours of wall-clock time")
    made.add_argument("--set", metavar="KEY=VALUE", nargs="+", action="extend", help="options of the family's task")
    made.add_argument("--out", metavar="DIR", help="where FAMILY.json is written (default: results/families)")
    made.add_argument("--page", metavar="FILE.md", help="write the page of a result, and run nothing")
    made.add_argument("--model", metavar="M", help="the model that all start from (default: the family's)")
    add_run_options(made)
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach side-by-side`; returns the exit code."""
    given = vars(parser().read(words))
    settings = settings_of(given)
    for name in ("seed", "budget", "steps"):
        if name in settings:
            instead = {"seed": "--seeds N and --first-seed N", "budget": "--tokens N", "steps": "--tokens N"}[name]
            raise BadValue(f"selfteach {command}: --{name} is not for it; give {instead}")
    if "page" in given:
        _page(command, given, settings)
        return 0
    from .. import experiments
    from ..core import registry
    from ..progress import show_progress

    if given["family"] not in experiments.FAMILIES:
        raise unknown("family that is compared", given["family"], experiments.FAMILIES)
    task = registry.regimes.get(experiments.FAMILIES[given["family"]].regime).task
    out = given.get("out", "results/families")
    with show_progress() as progress:
        result = experiments.side_by_side(
            given["family"],
            given.get("methods", ()),
            given.get("seeds", 8),
            given.get("tokens"),
            out,
            given.get("first_seed", FIRST_SEED),
            progress,
            jobs=given.get("jobs"),
            hours=given.get("hours"),
            task_options=read_task_options(task, given.get("set", ())),
            settings=settings,
            model=model_of(given),
        )
    if given.get("json"):
        print_json(result)
    else:
        from ..analysis import side_by_side
        from .show import print_tables

        print()
        print_tables(side_by_side.tables(result))
        print(f"result  {Path(out) / (given['family'] + '.json')}")
    return 0


def _page(command: str, given: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    if unread := [n for n in (*RUNNING, *settings) if n in given or n in settings]:
        raise BadValue(f"selfteach {command}: --page runs nothing; leave --{unread[0].replace('_', '-')} out")
    from ..analysis.claim_results import SHIPPED_RESULTS
    from ..analysis.side_by_side import read_result, write_page
    from ..core import registry
    from ..experiments.side_by_side import members

    family = given["family"]
    papers = {name: registry.methods.get(name).paper for name in members(family)}
    folders = [Path(given["out"])] if "out" in given else [Path("results/families"), SHIPPED_RESULTS / "families"]
    result = next((r for folder in folders if (r := read_result(folder, family))), None)
    try:
        file = write_page(family, papers, result, given["page"])
    except OSError as error:
        raise SelfteachError(f"{given['page']}: cannot be written ({error.strerror}); give another --page") from None
    if given.get("json"):
        print_json({"file": str(file), "methods": list(result["methods"]) if result else []})
    else:
        print(file)
