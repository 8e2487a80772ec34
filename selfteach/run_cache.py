"""The cache of runs: each in a folder named by a hash of all that it depends on.

A finished run is read back, an interrupted one continues, and two experiments with the same run share it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

from . import training
from .analysis.health import HealthWatch
from .configuration import RunConfig
from .core import registry
from .core.code_hash import code_hash
from .core.disk import file_lock
from .core.serial import to_json
from .loop.dependencies import source_files
from .loop.log import read_events
from .loop.run_folder import finished_figures
from .loop.session import Observer, ignore_events
from .model.names import ABOUT


def run_key(run_config: RunConfig) -> str:
    """A hash of all that a run depends on.

    Its configuration, the code that it reaches by import, the versions of libraries, and the files of the model or
    adapter that it starts from.
    """
    depends = {k: v for k, v in run_config.to_json().items() if k != "use"}
    depends["method"] = {  # its content, not its name
        k: v for k, v in depends["method"].items() if k not in ("name", "args")
    }
    return _key(run_config, depends, run_config.method)


STARTS = "starts"  # what policies were measured to be before training, beside the folders of runs
# Settings of training, of which the policy before it knows nothing.
OF_TRAINING = ("steps", "lr", "decay", "warmup", "budget", "max_seconds", "checkpoint_every", "keep")


def start_key(run_config: RunConfig) -> str:
    """A hash of all that measuring a run's policy before training depends on, which arms that differ in how they learn
    have in common: of the method what is played, of the settings all but those of training.
    """
    method = run_config.method
    played = {
        "stages": [(stage.programs, stage.sampling, stage.data) for stage in method.stages],
        **{name: getattr(method, name) for name in ("weights", "models", "tools", "decode", "quantise")},
    }
    depends = {k: v for k, v in run_config.to_json().items() if k not in ("use", "method")}
    depends["settings"] = {k: v for k, v in depends["settings"].items() if k not in OF_TRAINING}
    depends["played"] = to_json(played)
    return _key(run_config, depends, played)


def _key(run_config: RunConfig, depends: dict[str, Any], method: Any) -> str:
    """The hash of what is named, of the code that it and `method` reach, of libraries and of the files of models."""
    warm = registry.methods.get("sft").build
    roots = {Path(training.__file__), Path(warm.__code__.co_filename), *map(Path, run_config.use)}
    depends["code"] = code_hash(roots | source_files(method, run_config.task))
    depends["files"] = [_files(run_config.model), _files(run_config.settings.adapter)]
    return hashlib.blake2b(json.dumps(depends, sort_keys=True).encode(), digest_size=10).hexdigest()


def _files(path: str | None) -> list[tuple[str, int, int]]:
    """(name, size, modification time in ns) of each file of a model that is given by its folder or file."""
    if path is None or path in ABOUT:
        return []
    start = Path(path).resolve()
    files = sorted(start.rglob("*")) if start.is_dir() else [start]
    return [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]


@contextmanager
def folder_lock(folder: Path, observer: Observer) -> Generator[None]:
    """Hold a lock beside a folder, so that two processes never do the same run at once.

    The system releases it where the process is killed.
    """
    with file_lock(
        folder.with_name(folder.name + ".lock"), lambda: observer({"event": "waiting", "folder": str(folder)})
    ):
        yield


def run_once(run_config: RunConfig, store: Path, observer: Observer = ignore_events, key: str | None = None) -> Path:
    """The folder of the finished run of a configuration: read back, continued, or trained now.

    key: its `run_key`, where that is known. Who looks for the run afterwards gives it, for a source file that is edited
    meanwhile changes what `run_key` gives, and not the code that this process has loaded.

    Raises KeyboardInterrupt where the run was stopped.
    """
    folder = store / (key or run_key(run_config))
    with folder_lock(folder, observer):
        if finished_figures(folder) is None:
            run = training.carry_out(
                run_config,
                folder,
                observer,
                resume=(folder / "config.json").exists(),
                watch=HealthWatch(),
                measured=store / STARTS / f"{start_key(run_config)}.json",
            )
            if not run.done:
                raise KeyboardInterrupt
    return folder


def accuracy_curve(folder: Path) -> dict[int, float]:
    """Step -> held-out greedy accuracy of a run: during training, and before and after it where these were measured."""
    out: dict[int, float | None] = {}
    for e in read_events(folder / "log"):
        if e["event"] == "eval":
            out[e["step"]] = e.get("accuracy")
        elif e["event"] == "final_eval":
            out[e["step"]] = e["figures"].get("greedy")
    return {s: v for s, v in sorted(out.items()) if v is not None}


def logged_summaries(folder: Path) -> dict[str, float]:
    """Summaries of every metric that a run logged by step, for claims about training itself.

    The first value that was logged (`first:NAME`), when all arms still hold the policy that they begin with; the mean
    over the first quarter of the steps (`early:NAME`), over the last quarter (`late:NAME`) and over all (`mean:NAME`),
    and the sum (`sum:NAME`). The standard deviation over the steps as a share of the mean (`spread:NAME`), of what is
    nowhere negative, and the median change from a step to the next, |log(b / a)| (`jitter:NAME`), of what is positive.
    """
    metrics: dict[str, list[float]] = {}
    for e in read_events(folder / "log"):
        if e["event"] == "step":
            for name, value in e.items():
                if (
                    isinstance(value, int | float)
                    and not isinstance(value, bool)
                    and name not in ("step", "steps", "first")
                ):
                    metrics.setdefault(name, []).append(float(value))
    out: dict[str, float] = {}
    for name, values in metrics.items():
        quarter = max(1, len(values) // 4)
        parts = {"first": values[:1], "early": values[:quarter], "late": values[-quarter:], "mean": values}
        out |= {f"{part}:{name}": sum(some) / len(some) for part, some in parts.items()} | {f"sum:{name}": sum(values)}
        if len(values) > 1 and min(values) >= 0 < max(values):
            out[f"spread:{name}"] = pstdev(values) / fmean(values)
        if len(values) > 1 and min(values) > 0:
            out[f"jitter:{name}"] = median(abs(math.log(b / a)) for a, b in itertools.pairwise(values))
    return out
