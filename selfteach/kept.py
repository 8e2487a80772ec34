"""Runs kept by content: in a folder named by a hash of the configuration and of the code that it stands on.

One that is finished is read back, one that was interrupted goes on, and two experiments with the same run share it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from . import api
from .api import Job, Observer, silent
from .loop.assemble import parts_of
from .loop.checkpoint import disk_error
from .loop.log import plain, read_events

ROOMS = ("core", "model", "engine", "learner", "loop", "tools", "tasks")  # code that every run stands on


@cache
def _code(file: str) -> str:
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=8).hexdigest()


@cache
def _rooms() -> str:
    home = Path(__file__).parent
    files = sorted(f for room in ROOMS for f in (home / room).rglob("*.py"))
    return "".join(_code(str(f)) for f in files)


def content(job: Job) -> str:
    """The content that a run depends on, as a hash: its configuration, the rooms every run stands on, and the files of its own blocks."""
    blocks = {inspect.getsourcefile(p.fn) for s in job.method.stages for p in parts_of(s)}
    blocks |= {inspect.getsourcefile(p.fn) for p in (*job.method.decode.values(), *job.method.tools.values())}
    told = {k: v for k, v in job.to_json().items() if k != "use"}
    told["method"] = {k: v for k, v in told["method"].items() if k not in ("name", "args")}  # what it is, not what it is called
    told["code"] = [_rooms(), *sorted(_code(f) for f in (*blocks, *job.use) if f)]
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=10).hexdigest()


@contextmanager
def alone(folder: Path, observer: Observer) -> Iterator[None]:
    """Hold a lock beside a folder, so that two processes never do the same run at once; released by the system if we are killed."""
    try:
        import fcntl
    except ImportError:  # a system without it: nobody else is kept out
        yield
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(folder.name + ".lock").open("w")
    except OSError as error:
        raise disk_error(error, folder) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            observer({"event": "waiting", "folder": str(folder)})
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def finished(folder: Path) -> dict[str, Any] | None:
    """The figures of a run that is over; None for one that is not."""
    try:
        return json.loads((folder / "figures.json").read_text())
    except (OSError, ValueError):
        return None


def once(job: Job, store: Path, observer: Observer = silent) -> Path:
    """The folder of a finished run of this job: read back, gone on with, or done now. Raises KeyboardInterrupt where it was stopped."""
    folder = store / content(job)
    with alone(folder, observer):
        if finished(folder) is None:
            run = api.train(job, folder, observer, resume=(folder / "config.json").exists())
            if not run.done:
                raise KeyboardInterrupt
    return folder


def evals(folder: Path) -> dict[int, float]:
    """step -> held-out accuracy (greedy) of a run, with the measurements before and after where there are any."""
    out: dict[int, float | None] = {}
    for e in read_events(folder / "log"):
        if e["event"] == "eval":
            out[e["step"]] = e.get("accuracy")
        elif e["event"] == "survey":
            out[e["step"]] = e["figures"].get("greedy")
    return {s: v for s, v in sorted(out.items()) if v is not None}


def logged(folder: Path) -> dict[str, float]:
    """What a run's steps told, for claims about training itself: of every logged number its mean over the first quarter of the steps
    (`early:NAME`), the last (`late:NAME`) and all (`mean:NAME`), and their sum (`sum:NAME`)."""
    told: dict[str, list[float]] = {}
    for e in read_events(folder / "log"):
        if e["event"] == "step":
            for name, value in e.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and name not in ("step", "steps", "first"):
                    told.setdefault(name, []).append(float(value))
    out: dict[str, float] = {}
    for name, values in told.items():
        quarter = max(1, len(values) // 4)
        cuts = {"early": values[:quarter], "late": values[-quarter:], "mean": values}
        out |= {f"{cut}:{name}": sum(some) / len(some) for cut, some in cuts.items()} | {f"sum:{name}": sum(values)}
    return out


def write_json(file: Path, value: Any) -> None:
    """Write a JSON file whole or not at all. Raises SelfteachError for a full disk or a folder that cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f".{file.name}.{os.getpid()}.new")
        aside.write_text(json.dumps(plain(value), indent=1) + "\n")
        os.replace(aside, file)
    except OSError as error:
        raise disk_error(error, file) from error
