"""The works of `bench step`: a GRPO step end to end, with short and long prompts, beside TRL; memory over many steps;
starting.
"""

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
from .systems import PRECISIONS, ours, own, peers
from .workloads import Options, Work

PARTS = ("fixed", "trunks", "memory", "start")
SHAPE = {"tiny": (8, 8, 64)}  # prompts, answers to each, tokens of an answer; for others:
OTHER = (2, 8, 48)
PROMPT, LONGER = 32, 4


def works(o: Options, folder: Path, c: Config) -> Iterator[Work]:
    """The works of a model, in the order of PARTS but the start. Rates count drawn tokens."""
    many, each, new = SHAPE.get(o.model, OTHER)
    precisions = ours(o)
    for part, prompt in (("fixed", PROMPT), ("trunks", LONGER * new)):
        if part not in o.only:
            continue
        need = {d: rollout(c, many * each, prompt, new, d, each) for d in PRECISIONS}
        taught = replace(learn(c, [(prompt, [new] * each)] * many), tokens=0)
        need = {d: n + taught for d, n in need.items()}
        yield Work(
            part,
            f"{many} prompts of {prompt} x {each} answers of {new}",
            (*own("step", precisions), *peers(o, folder)),
            {**base(o, folder, many, each, new, prompt), "texts": digits(64, prompt)},
            need=need,
        )
    if "memory" in o.only:
        yield Work(
            "memory",
            f"{o.steps} steps of 4 prompts of {PROMPT} x 4 answers of 32",
            tuple(own("step", precisions[-1:])),
            {**base(o, folder, 4, 4, 32, PROMPT), "texts": digits(1024, PROMPT)},
            repeats=o.steps,
        )


def base(o: Options, folder: Path, many: int, each: int, new: int, prompt: int) -> dict[str, Any]:
    shape = {"prompts": many, "rollouts": each, "new": new, "length": prompt + new}
    return {"kind": "step", "folder": str(folder), "slots": o.slots, **shape}


def digits(count: int, length: int) -> list[str]:
    """Prompts of one token a character in any byte-level tokenizer."""
    return [
        "".join(map(str, row))
        for row in random_keys.generator("bench", "digits", length).integers(0, 10, (count, length)).tolist()
    ]


def flatness(resident: Sequence[float]) -> dict[str, float]:
    """Memory over steps: the median of the second tenth and of the last, and what a step adds between the two."""
    tenth = max(1, len(resident) // 10)
    early, late = spread(resident[tenth : 2 * tenth] or resident)["median"], spread(resident[-tenth:])["median"]
    return {
        "early_bytes": early,
        "late_bytes": late,
        "bytes_per_step": (late - early) / max(1, len(resident) - 1.5 * tenth),
    }


def starting(o: Options, progress: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of `selfteach --help`, and of a fresh process up to its first finished episode after a warm start that is
    kept.
    """
    root = str(HERE.parent.parent)
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(o.threads)}

    def seconds(*words: str) -> tuple[float, str]:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=True)
        return time.perf_counter() - start, done.stdout

    progress("start: a warm start, unless it is kept already")
    _, said = seconds("-m", "selfteach.bench.own.start")
    shown: list[float] = []
    first: list[float] = []
    cached = True
    for number in range(o.repeats):
        progress(f"start: round {number + 1} of {o.repeats}")
        shown.append(seconds("-m", "selfteach.cli", "--help")[0])
        took, said = seconds("-m", "selfteach.bench.own.start")
        first.append(took)
        cached = cached and json.loads(said)["cached"]
    return {"help_seconds": spread(shown), "first_rollout_seconds": spread(first), "warm_start_cached": cached}
