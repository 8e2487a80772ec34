"""Measure all workloads of a benchmark, one after the other: the systems and the machine in turns, then summaries."""

from __future__ import annotations

import platform
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.errors import unknown
from . import learn, rollout, step
from .interleaved import System, SystemResult, run_interleaved, spread, summaries
from .roofline import bandwidth_name, limits_of
from .workloads import Options, Workload, model_folder

KINDS: dict[str, ModuleType] = {"rollout": rollout, "learn": learn, "step": step}
ON_REQUEST = ("memory",)  # takes long


def measure(
    o: Options,
    progress: Callable[[str], None] = lambda text: None,
    on_result: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Run the workloads of `o.kind`; `progress` gets a line on what is running, `on_result` each workload's results.

    Raises UnknownName or BadValue before anything is measured; a system that fails is an entry with its error.
    """
    kind = KINDS[o.kind]
    for name in o.only:
        if name not in kind.WORKLOADS:
            raise unknown(f"workload of bench {o.kind} (--only)", name, kind.WORKLOADS)
    o = replace(o, only=o.only or tuple(p for p in kind.WORKLOADS if p not in ON_REQUEST))
    results: dict[str, Any] = {
        "kind": o.kind,
        "model": o.model,
        "threads": o.threads,
        "repeats": o.repeats,
        "machine": {"processor": processor_name(), "python": platform.python_version()},
        "workloads": [],
    }
    with tempfile.TemporaryDirectory(prefix="selfteach-bench-") as scratch:
        o = replace(o, scratch=Path(scratch))
        folder, config = model_folder(o.model, o.scratch)
        results["random_weights"] = folder.is_relative_to(o.scratch)
        for workload in kind.workloads(o, folder, config):
            progress(workload.title)
            results["workloads"].append(measure_workload(workload, o, progress))
            on_result(results["workloads"][-1])
    if "startup" in o.only:
        results["startup"] = step.startup(o, progress)
    return results


def measure_workload(workload: Workload, o: Options, progress: Callable[[str], None]) -> dict[str, Any]:
    """The results of one workload."""
    names = sorted({bandwidth_name(c.resident) for c in workload.costs.values()})
    systems = list(workload.systems)
    if names:
        systems.append(System("machine", "", "selfteach.bench.own.machine", extra={"bandwidths": names}))
    results = run_interleaved(
        systems, workload.config, workload.inputs, workload.repeats or o.repeats, o.threads, progress
    )
    machine: dict[str, Any] = {}
    if names and (rounds := results.pop().rounds):
        machine = {k: spread([r[k] for r in rounds]) for k in ("float32", "bfloat16", *names)}
    limits = limits_of(workload.costs, {k: v["median"] for k, v in machine.items()}) if machine else {}
    out = {
        "name": workload.name,
        "title": workload.title,
        "limits": limits,
        "machine": machine,
        "systems": summaries(results, limits),
    }
    return out | extra_results(workload.name, results)


def extra_results(name: str, results: list[SystemResult]) -> dict[str, Any]:
    """What a workload gives besides rates."""
    ran = [s for s in results if s.rounds]
    if name == "memory" and ran:
        return {"memory": step.memory_growth([r["rss"] for r in ran[0].rounds])}
    if name in ("turns", "forks") and ran:
        keys = [k for k in ran[0].rounds[0] if k not in ("tokens", "seconds", "rss") and not k.startswith("seconds/")]
        return {name: {k: statistics.median(r[k] for r in ran[0].rounds) for k in keys}}
    if name == "shared_prefix":
        errors = [s.info["gradient_error"] for s in results if "gradient_error" in s.info]
        return {"gradient_error": errors[0]} if errors else {}
    return {}


def processor_name(file: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, as far as the operating system gives it."""
    if file.is_file():
        for text in file.read_text(encoding="utf-8").splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    return platform.processor() or platform.machine()
