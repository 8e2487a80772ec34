"""All works of a kind, one after the other: contestants and the machine in turns, then figures."""

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
from .interleaved import Contestant, Measured, run_interleaved, spread, summaries
from .roofline import bounds, read_name
from .workloads import Options, Work, folder_of

KINDS: dict[str, ModuleType] = {"rollout": rollout, "learn": learn, "step": step}
LEFT_OUT = ("memory",)  # takes long: only where it is asked for


def measure(
    o: Options,
    say: Callable[[str], None] = lambda text: None,
    seen: Callable[[dict[str, Any]], None] = lambda work: None,
) -> dict[str, Any]:
    """Do the works of `o.kind`; `say` hears what is under way, `seen` the figures of each work as soon as it is done.

    Raises UnknownName or BadValue before anything is measured; a contestant that fails is a line of its own.
    """
    kind = KINDS[o.kind]
    for name in o.only:
        if name not in kind.PARTS:
            raise unknown(f"part of bench {o.kind} (--only)", name, kind.PARTS)
    o = replace(o, only=o.only or tuple(p for p in kind.PARTS if p not in LEFT_OUT))
    found: dict[str, Any] = {
        "kind": o.kind,
        "model": o.model,
        "threads": o.threads,
        "repeats": o.repeats,
        "machine": {"processor": processor(), "python": platform.python_version()},
        "works": [],
    }
    with tempfile.TemporaryDirectory(prefix="selfteach-bench-") as aside:
        o = replace(o, aside=Path(aside))
        folder, config = folder_of(o.model, o.aside)
        found["random_weights"] = folder.is_relative_to(o.aside)
        for work in kind.works(o, folder, config):
            say(work.title)
            found["works"].append(figures(work, o, say))
            seen(found["works"][-1])
    if "start" in o.only:
        found["starting"] = step.starting(o, say)
    return found


def figures(work: Work, o: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """One work done, as figures."""
    names = sorted({read_name(n.resident) for n in work.need.values()})
    entries = list(work.entries)
    if names:
        entries.append(Contestant("machine", "", "selfteach.bench.own.machine", more={"reads": names}))
    results = run_interleaved(entries, work.fields, work.given, work.repeats or o.repeats, o.threads, say)
    machine: dict[str, Any] = {}
    if names and (rounds := results.pop().rounds):
        machine = {k: spread([r[k] for r in rounds]) for k in ("float32", "bfloat16", *names)}
    limits = bounds(work.need, {k: v["median"] for k, v in machine.items()}) if machine else {}
    out = {
        "part": work.part,
        "title": work.title,
        "limits": limits,
        "measured": machine,
        "contestants": summaries(results, limits),
    }
    return out | special(work.part, results)


def special(part: str, results: list[Measured]) -> dict[str, Any]:
    """What a part tells besides rates."""
    ran = [s for s in results if s.rounds]
    if part == "memory" and ran:
        return {"memory": step.flatness([r["rss"] for r in ran[0].rounds])}
    if part in ("turns", "forks") and ran:
        names = [k for k in ran[0].rounds[0] if k not in ("tokens", "seconds", "rss") and not k.startswith("seconds/")]
        return {part: {k: statistics.median(r[k] for r in ran[0].rounds) for k in names}}
    if part == "trunks":
        gaps = [s.about["gradient_gap"] for s in results if "gradient_gap" in s.about]
        return {"gradient_gap": gaps[0]} if gaps else {}
    return {}


def processor(file: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, as far as the system tells it."""
    if file.is_file():
        for text in file.read_text().splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    return platform.processor() or platform.machine()
