"""The workloads of `bench step`: a GRPO step end to end beside TRL, with short and long prompts; memory; startup."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import random_keys
from ..model.transformer import Config
from .interleaved import HERE, spread
from .roofline import learn, rollout
from .systems import PRECISIONS, peers, precisions, selfteach
from .workloads import Options, Workload

WORKLOADS = ("fixed", "shared_prefix", "memory", "startup")
SHAPE = {"tiny": (8, 8, 64)}  # prompts, responses to each, tokens of a response
DEFAULT_SHAPE = (2, 8, 48)
PROMPT = 32
PROMPT_RATIO = 4  # tokens of a shared prompt to those of a response


def workloads(o: Options, folder: Path, c: Config) -> Iterator[Workload]:
    """The workloads of a model, in the order of WORKLOADS but `startup`. Rates count sampled tokens."""
    count, rollouts, new = SHAPE.get(o.model, DEFAULT_SHAPE)
    ours = precisions(o)
    for name, prompt in (("fixed", PROMPT), ("shared_prefix", PROMPT_RATIO * new)):
        if name not in o.only:
            continue
        costs = {d: rollout(c, count * rollouts, prompt, new, d, rollouts) for d in PRECISIONS}
        update = replace(learn(c, [(prompt, [new] * rollouts)] * count), tokens=0)
        costs = {d: c + update for d, c in costs.items()}
        yield Workload(
            name,
            f"{count} prompts of {prompt} x {rollouts} responses of {new}",
            (*selfteach("step", ours), *peers(o, folder)),
            {**config_of(o, folder, count, rollouts, new, prompt), "texts": digits(64, prompt)},
            costs=costs,
        )
    if "memory" in o.only:
        yield Workload(
            "memory",
            f"{o.steps} steps of 4 prompts of {PROMPT} x 4 responses of 32",
            tuple(selfteach("step", ours[-1:])),
            {**config_of(o, folder, 4, 4, 32, PROMPT), "texts": digits(1024, PROMPT)},
            repeats=o.steps,
        )


def config_of(o: Options, folder: Path, count: int, rollouts: int, new: int, prompt: int) -> dict[str, Any]:
    """What a workload gives every system once."""
    shape = {"prompts": count, "rollouts": rollouts, "new": new, "length": prompt + new}
    return {"kind": "step", "folder": str(folder), "slots": o.slots, **shape}


def digits(count: int, length: int) -> list[str]:
    """Prompts of one token a character in any byte-level tokenizer."""
    return [
        "".join(map(str, row))
        for row in random_keys.generator("bench", "digits", length).integers(0, 10, (count, length)).tolist()
    ]


def memory_growth(resident: Sequence[float]) -> dict[str, float]:
    """Resident bytes over steps: medians of the second tenth and of the last, and the growth per step between them."""
    tenth = max(1, len(resident) // 10)
    early, late = spread(resident[tenth : 2 * tenth] or resident)["median"], spread(resident[-tenth:])["median"]
    return {
        "early_bytes": early,
        "late_bytes": late,
        "bytes_per_step": (late - early) / max(1, len(resident) - 1.5 * tenth),
    }


def startup(o: Options, progress: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of `selfteach --help`, and of a fresh process up to its first finished episode after a cached warm
    start.
    """
    root = str(HERE.parent.parent)
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(o.threads)}

    def seconds(*words: str) -> tuple[float, str]:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, encoding="utf-8", check=True)
        return time.perf_counter() - start, done.stdout

    progress("startup: a warm start, unless it is cached already")
    seconds("-m", "selfteach.bench.own.startup")
    help_seconds: list[float] = []
    first: list[float] = []
    cached = True
    for number in range(o.repeats):
        progress(f"startup: round {number + 1} of {o.repeats}")
        help_seconds.append(seconds("-m", "selfteach.cli", "--help")[0])
        took, output = seconds("-m", "selfteach.bench.own.startup")
        first.append(took)
        cached = cached and json.loads(output)["cached"]
    return {"help_seconds": spread(help_seconds), "first_rollout_seconds": spread(first), "warm_start_cached": cached}
