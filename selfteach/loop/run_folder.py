"""Folders of runs: which there are in a folder, where each stands, its newest checkpoint and its figures.

Read from the ends of their files; nothing of a model is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .log import EVENTS, last_events, logged_steps

FIGURES = "figures.json"  # of a finished run
DEEPEST = 6  # folders below the one that is given
LIVE_SECONDS = 90.0  # a log that grew within so many, or within four of its steps, is of a run that is going on


def finished_figures(folder: Path) -> dict[str, Any] | None:
    """The figures of a finished run; None for one that is not finished."""
    try:
        return json.loads((folder / FIGURES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def find(run: Path) -> Path | None:
    """The folder of the newest checkpoint: what `last` names, or, where that is missing (a copy without links), the one
    of the highest step; None where there is none.
    """
    if (run / "last").is_dir():
        return (run / "last").resolve()
    written = [p for p in (run / "checkpoints").glob("*") if p.name.isdigit() and (p / "state.json").is_file()]
    return max(written, key=lambda p: int(p.name), default=None)


def find_runs(folder: Path) -> Iterator[Path]:
    """The folders of runs in a folder, itself included, in order of names; links are not followed."""
    for at, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        here = Path(at)
        if "config.json" in files and ((here / "log").is_dir() or (here / FIGURES).is_file() or _is_run(here)):
            folders.clear()
            yield here
        elif len(here.relative_to(folder).parts) >= DEEPEST:
            folders.clear()


def _is_run(folder: Path) -> bool:
    """Whether a folder without a log is of a run that has just begun, and not of a model."""
    return bool(read_config(folder).get("method"))


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a run as it is; empty where there is none, or none that can be read."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


@dataclass(frozen=True)
class RunSummary:
    """Where a run stands.

    method, task, model, seed  of its configuration; arm: equal for runs that differ in the seed alone
    state                      done; live: its log grows; stopped; starting: nothing is logged yet
    steps, planned             steps behind it, and in all (None: until a budget is spent)
    reward                     mean of its newest step; accuracy: held-out, the newest known
    changed                    when its log last grew, seconds since 1970
    """

    name: str
    method: str
    task: str
    model: str
    seed: int | None
    arm: str
    state: str
    steps: int
    planned: int | None
    reward: float | None
    accuracy: float | None
    changed: float
    has_rollouts: bool

    def to_json(self) -> dict[str, Any]:
        """The summary as plain values."""
        return asdict(self)


def summary_of(folder: Path) -> RunSummary:
    """Where the run in a folder stands; whatever is missing or broken there is left out."""
    config, figures = read_config(folder), finished_figures(folder)
    settings = _mapping(config.get("settings"))
    events = last_events(folder / "log", 1 << 14)
    steps = [e for e in events if e["event"] == "step"]
    changed = _changed(folder)
    taken = steps[-1]["step"] + 1 if steps else 0
    if figures is not None:
        taken = figures.get("steps") or taken
    return RunSummary(
        folder.name,
        str(_mapping(config.get("method")).get("name", "")),
        str(config.get("task", "")),
        str(config.get("model", "")),
        settings.get("seed"),
        arm_of(config),
        _state(figures, steps, changed),
        taken,
        settings.get("steps"),
        steps[-1].get("reward/mean") if steps else None,
        _accuracy(events, figures),
        changed,
        bool(logged_steps(folder / "log")),
    )


def arm_of(config: Mapping[str, Any]) -> str:
    """A hash of a run's configuration without its seeds and without what does not change its results."""
    plain = {k: v for k, v in config.items() if k != "format"}
    plain["settings"] = {k: v for k, v in _mapping(config.get("settings")).items() if k not in ("seed", "threads")}
    plain["warm"] = {k: v for k, v in _mapping(config.get("warm")).items() if k != "seed"}
    plain["final_eval"] = {k: v for k, v in _mapping(config.get("final_eval")).items() if k != "seed"}
    return hashlib.blake2b(json.dumps(plain, sort_keys=True).encode(), digest_size=6).hexdigest()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _changed(folder: Path) -> float:
    for file in (folder / "log" / EVENTS, folder / "config.json"):
        try:
            return file.stat().st_mtime
        except OSError:
            continue
    return 0.0


def _state(figures: Mapping[str, Any] | None, steps: list[dict[str, Any]], changed: float) -> str:
    if figures is not None:
        return "done"
    slow = 4 * max((e.get("time/step_s") or 0.0 for e in steps), default=0.0)
    if time.time() - changed < max(LIVE_SECONDS, slow):
        return "live" if steps else "starting"
    return "stopped"


def _accuracy(events: list[dict[str, Any]], figures: Mapping[str, Any] | None) -> float | None:
    if figures is not None:
        after = _mapping(figures.get("after"))
        return after.get("accuracy", after.get("greedy"))
    known = [e for e in events if e["event"] == "eval"]
    return known[-1].get("sampled", known[-1].get("accuracy")) if known else None
