"""Methods compared on one task over seeds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis import comparison, statistics
from ..core.disk import disk_error
from ..core.errors import BadValue
from ..core.serial import plain, write_json
from ..loop.session import Observer, ignore_events
from .arms import Arm
from .runs import RunPool, RunRequest

FORMAT = 1
LONGEST = 110  # characters of a file's name


def compare(
    arms: Sequence[Arm],
    seeds: Sequence[int],
    out: str | Path,
    observer: Observer = ignore_events,
    jobs: int = 1,
    *,
    name: str | None = None,
    best_first: bool = False,
) -> dict[str, Any]:
    """Run every arm with every seed for the same number of steps, and return the table of results.

    Writes OUT/TASK-NAME.json and the chart OUT/TASK-NAME.png. Runs are cached in OUT/runs, and reused by any comparison
    with the same folder. jobs: how many run at once.

    name        of the results (None: of the arms)
    best_first  a sweep: arms are sorted by what they are compared by, against the best; a run that fails is noted
                under "failed", and the others go on

    Raises BadValue for two arms of one name, and for arms that differ in task
    or budget.
    """
    names = [a.name for a in arms]
    if len(set(names)) < len(names):
        raise BadValue(f"compare: two of {', '.join(names)} are the same; give each once")
    budgets = {
        (
            a.run_config.settings.steps,
            a.run_config.settings.budget,
            a.run_config.task,
            json.dumps(plain(a.run_config.task_options), sort_keys=True),
        )
        for a in arms
    }
    if len(budgets) > 1:
        raise BadValue("compare: the arms differ in task or budget; give all the same task, options and steps")
    if len(seeds) > 1:
        statistics.require_scipy()
    home = Path(out)
    with RunPool(home / "runs", observer, jobs, tolerant=best_first, steps_shown=None) as runs:
        runs.run(RunRequest(arm.name, seed, arm.seeded(seed)) for seed in seeds for arm in arms)
    run_config = arms[0].run_config
    figures = {n: [_final_figures(runs.results.get(n, {}).get(s, {})) for s in seeds] for n in names}
    if best_first:
        figures = comparison.sorted_arms(figures)
    result: dict[str, Any] = {
        "format": FORMAT,
        "task": run_config.task,
        "task_options": plain(dict(run_config.task_options)),
        "model": run_config.model,
        "steps": run_config.settings.steps,
        "seeds": list(seeds),
        "arms": comparison.compare_arms(figures),
    }
    if best_first:
        result["failed"] = {f"{arm} seed {seed}": error for (arm, seed), error in runs.failed.items()}
    title = f"{name or ', '.join(names)} on {run_config.task}, {run_config.settings.steps} steps"
    name = file_name("-".join([run_config.task, *([name] if name else names)]))
    write_json(home / f"{name}.json", result)
    try:
        chart = str(comparison.draw(result["arms"], title, home / f"{name}.png"))
    except OSError as error:
        raise disk_error(error, home) from error
    except BadValue:  # matplotlib is missing
        chart = None
    return {**result, "chart": chart, "file": str(home / f"{name}.json")}


def _final_figures(run: Mapping[str, Any]) -> dict[str, Any]:
    """The figures after training with tokens and seconds beside them, and the accuracies during it."""
    figures = {
        **run.get("after", {}),
        "tokens": run.get("tokens"),
        "seconds": run.get("seconds", {}).get("training"),
    }
    return {"figures": figures, "evals": run.get("evals", {})}


def file_name(text: str) -> str:
    """A text as the name of a file; a long one is cut, with a hash of the whole."""
    name = re.sub(r"[^\w=.-]+", "_", text)
    return (
        name
        if len(name) <= LONGEST
        else f"{name[:LONGEST]}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
    )
