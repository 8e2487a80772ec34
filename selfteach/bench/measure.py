"""All works of a kind, one after the other: contestants and the machine in turns, then figures."""

from __future__ import annotations

import platform
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ..core.errors import unknown
from . import learn, rollout, step
from .contest import Entry, Standing, contest, spread, told
from .limits import bounds, read_name
from .work import Options, Work, folder_of

KINDS: dict[str, ModuleType] = {"rollout": rollout, "learn": learn, "step": step}
LEFT_OUT = ("memory",)  # takes long: only where it is asked for


def measure(o: Options, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Do the works of `o.kind`. Raises UnknownName or BadValue before anything is measured; a contestant that fails is a line of its own."""
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
    if "start" in o.only:
        found["starting"] = step.starting(o, say)
    return found


def figures(work: Work, o: Options, say: Callable[[str], None]) -> dict[str, Any]:
    """One work done, as figures."""
    names = sorted({read_name(n.resident) for n in work.need.values()})
    entries = list(work.entries)
    if names:
        entries.append(Entry("machine", "", "selfteach.bench.own.machine", more={"reads": names}))
    standings = contest(entries, work.fields, work.given, work.repeats or o.repeats, o.threads, say)
    machine: dict[str, Any] = {}
    if names and (rounds := standings.pop().rounds):
        machine = {k: spread([r[k] for r in rounds]) for k in ("float32", "bfloat16", *names)}
    limits = bounds(work.need, {k: v["median"] for k, v in machine.items()}) if machine else {}
    out = {"part": work.part, "title": work.title, "limits": limits, "measured": machine, "contestants": told(standings, limits)}
    return out | special(work.part, standings)


def special(part: str, standings: list[Standing]) -> dict[str, Any]:
    """What a part tells besides rates."""
    ran = [s for s in standings if s.rounds]
    if part == "memory" and ran:
        return {"memory": step.flatness([r["rss"] for r in ran[0].rounds])}
    if part in ("turns", "forks") and ran:
        names = [k for k in ran[0].rounds[0] if k not in ("tokens", "seconds", "rss") and not k.startswith("seconds/")]
        return {part: {k: statistics.median(r[k] for r in ran[0].rounds) for k in names}}
    if part == "trunks":
        gaps = [s.about["gradient_gap"] for s in standings if "gradient_gap" in s.about]
        return {"gradient_gap": gaps[0]} if gaps else {}
    return {}


def processor(file: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, as far as the system tells it."""
    if file.is_file():
        for text in file.read_text().splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def shown(found: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]], list[str]]]:
    """Tables for people: title, columns, rows, lines below."""
    out = [table(work) for work in found["works"]]
    if start := found.get("starting"):
        rows = [[name, f"{start[key]['median']:.2f} s", between(start[key], 2)] for name, key in STARTING.items()]
        out.append(("starting", ["what", "median", "range"], rows, [] if start["warm_start_cached"] else ["the warm start was not kept"]))
    return out


STARTING = {"selfteach --help": "help_seconds", "first finished episode, warm start kept": "first_rollout_seconds"}


def between(spread: Mapping[str, float], digits: int = 0) -> str:
    return f"{spread['low']:,.{digits}f} to {spread['high']:,.{digits}f}"


def table(work: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]], list[str]]:
    """One work as a table, with the limit and what it is made of below."""
    rows: list[list[str]] = []
    notes: list[str] = []
    for c in work["contestants"]:
        name = f"{c['name']} {c['variant']}".strip()
        if "tokens_per_second" not in c:
            why = f"{c['missing']}; {c['install']}" if c.get("missing") else f"failed: {c.get('error', 'no round was measured')}"
            notes.append(f"{name}: {why}")
            continue
        rate, ratio, share = c["tokens_per_second"], c.get("ours_over_it"), c.get("share_of_limit")
        parts = ", ".join(f"{k.removeprefix('seconds/')} {v:.3g}" for k, v in c.items() if k.startswith("seconds/"))
        rows.append(
            [
                name,
                f"{rate['median']:,.0f}",
                between(rate),
                f"{ratio['median']:.2f}" if ratio else "-",
                between(ratio, 2) if ratio else "-",
                f"{share:.0%}" if share is not None else "-",
                f"{c['seconds']['median']:.3g}",
                parts or "-",
            ]
        )
    columns = ["who", "tokens/s", "range", "ours/it", "range", "of limit", "seconds", "of these"]
    return work["title"], columns, rows, [*(limit_line(d, x) for d, x in work["limits"].items()), *special_lines(work), *notes]


def limit_line(dtype: str, x: Mapping[str, Any]) -> str:
    return (
        f"limit {dtype}: {x['tokens_per_second']:,.0f} tokens/s by {x['bound_by']}: {x['flops_per_token'] / 1e6:,.2f} MFLOP a token "
        f"at {x['flop_per_second'] / 1e9:,.0f} GFLOP/s, {x['bytes_per_token'] / 1e6:,.3f} MB a token at {x['bytes_per_second'] / 1e9:,.0f} GB/s"
    )


def special_lines(work: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if turns := work.get("turns"):
        lines.append(f"tokens computed over tokens needed: {turns['computed_over_needed']:.3f}")
    if forks := work.get("forks"):
        lines.append(f"a fork copies {forks['copied_per_fork']:,.0f} tokens of the cache and computes {forks['prefilled_per_fork']:,.1f}")
    if "gradient_gap" in work:
        lines.append(f"gradient of the shared against the separate in float32, |a - b| / |b|: {work['gradient_gap']:.1e}")
    if memory := work.get("memory"):
        lines.append(
            f"memory: {memory['early_bytes'] / 1e6:,.1f} MB early, {memory['late_bytes'] / 1e6:,.1f} MB late, "
            f"{memory['bytes_per_step'] / 1e3:,.2f} kB more a step"
        )
    return lines
