"""Seconds and memory from a model's name to a run that is ready to step: the model, then learner, reference and engine.

    python benchmarks/loading.py --model smollm2-135m --repeat 5 --json

Each repetition is a process of its own; the fastest is reported, with its memory in MB: `private` is not backed by a
file, `peak` is the largest resident set, mapped files included. Imports are not timed. A first run, not counted, fills
the caches.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path


def memory() -> dict[str, int]:
    """MB of this process: private (not backed by a file) and the peak resident set."""
    lines = (
        Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        if Path("/proc/self/status").is_file()
        else []
    )
    status = {
        k: int(v.split()[0]) // 1024 for k, _, v in (line.partition(":") for line in lines) if k in ("RssAnon", "VmHWM")
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform.startswith("linux") else 1 << 20)
    return {"private": status.get("RssAnon", 0), "peak": status.get("VmHWM", peak)}


def once(name: str, beta: float) -> dict[str, dict[str, float]]:
    """The stages of one start, in this process."""
    import torch

    from selfteach.configuration import task_source
    from selfteach.core import registry
    from selfteach.loop import assemble
    from selfteach.model.catalog import build

    torch.set_num_threads(1)
    source = task_source("atlas", {})
    method = registry.methods.get("grpo")(beta=beta)
    if source.words is not None:
        source.words()
    stages: dict[str, dict[str, float]] = {}
    last = [time.perf_counter()]

    def mark(stage: str) -> None:
        now = time.perf_counter()
        stages[stage] = {"seconds": round(now - last[0], 3), **memory()}
        last[0] = now

    mark("before")
    start = build(name, source)
    mark("model")
    loop = assemble.loop(method, source, start, assemble.RunSettings(context=512))
    mark("learner and engine")
    for group in method.weights:
        loop.learner.fingerprint(group) if group in loop.learner.groups else None  # type: ignore[attr-defined]
    mark("reference")
    return stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a model's name or folder")
    parser.add_argument("--beta", type=float, default=0.04, help="of GRPO; 0: without a reference")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.once:
        print(json.dumps(once(a.model, a.beta)))
        return
    command = [sys.executable, __file__, "--once", "--model", a.model, "--beta", str(a.beta)]
    runs = [
        json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout.splitlines()[-1]
        )
        for _ in range(a.repeat + 1)
    ]
    best = min(runs[1:], key=lambda run: sum(stage["seconds"] for stage in run.values()))
    if a.json:
        print(json.dumps({"model": a.model, "beta": a.beta, "stages": best}))
        return
    print(f"{a.model}, beta {a.beta:g}\n{'':<22}{'seconds':>10}{'private MB':>12}{'peak MB':>10}")
    for stage, row in best.items():
        print(f"{stage:<22}{row['seconds']:>10.3f}{row['private']:>12.0f}{row['peak']:>10.0f}")


if __name__ == "__main__":
    main()
