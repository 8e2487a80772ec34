"""Methods compared on one task over seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis import comparison, statistics
from ..core.disk import disk_error
from ..core.errors import BadValue
from ..core.serial import plain
from ..run_cache import write_json
from ..training import Observer, ignore_events
from .arms import Arm
from .runs import RunPool, RunRequest

FORMAT = 1


def compare(
    arms: Sequence[Arm], seeds: Sequence[int], out: str | Path, observer: Observer = ignore_events, jobs: int = 1
) -> dict[str, Any]:
    """Run every arm with every seed for the same number of steps, and return the table of results.

    Writes OUT/NAME.json and the chart OUT/NAME.png. Runs are cached in OUT/runs, and reused by any comparison with the
    same folder. jobs: how many run at once. Raises BadValue for two arms of one name, and for arms that differ in task
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
    with RunPool(home / "runs", observer, jobs) as runs:
        runs.run(RunRequest(arm.name, seed, arm.seeded(seed)) for seed in seeds for arm in arms)
    run_config = arms[0].run_config
    figures = {n: [_final_figures(runs.results[n][s]) for s in seeds] for n in names}
    result: dict[str, Any] = {
        "format": FORMAT,
        "task": run_config.task,
        "task_options": plain(dict(run_config.task_options)),
        "model": run_config.model,
        "steps": run_config.settings.steps,
        "seeds": list(seeds),
        "arms": comparison.compare_arms(figures),
    }
    name = re.sub(r"[^\w=.-]+", "_", "-".join([run_config.task, *names]))[:120]
    title = f"{', '.join(names)} on {run_config.task}, {run_config.settings.steps} steps"
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
    return {"figures": figures, "evals": run["evals"]}
