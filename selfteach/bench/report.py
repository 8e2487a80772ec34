"""Results of a benchmark as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..analysis.figures import ReportTable

STARTUP = {"selfteach --help": "help_seconds", "first finished episode, warm start cached": "first_rollout_seconds"}


def startup_table(startup: Mapping[str, Any]) -> tuple[ReportTable, list[str]]:
    """The times of startup as a table."""
    rows = [[name, f"{startup[key]['median']:.2f} s", format_range(startup[key], 2)] for name, key in STARTUP.items()]
    return ReportTable("startup", ["what", "median", "range"], rows), [] if startup["warm_start_cached"] else [
        "the warm start was not cached"
    ]


def format_range(spread: Mapping[str, float], digits: int = 0) -> str:
    """LOW to HIGH."""
    return f"{spread['low']:,.{digits}f} to {spread['high']:,.{digits}f}"


def workload_table(workload: Mapping[str, Any]) -> tuple[ReportTable, list[str]]:
    """One workload as a table, with lines for below it: the limits and their terms, and systems without figures.

    "speedup" is that of selfteach's fastest precision over the system.
    """
    rows: list[list[str]] = []
    notes: list[str] = []
    for c in workload["systems"]:
        name = f"{c['name']} {c['variant']}".strip()
        if "tokens_per_second" not in c:
            why = (
                f"{c['missing']}; {c['install']}"
                if c.get("missing")
                else f"failed: {c.get('error', 'no round was measured')}"
            )
            notes.append(f"{name}: {why}")
            continue
        rate, ratio, share = c["tokens_per_second"], c.get("speedup"), c.get("share_of_limit")
        phases = ", ".join(f"{k.removeprefix('seconds/')} {v:.3g}" for k, v in c.items() if k.startswith("seconds/"))
        rows.append(
            [
                name,
                f"{rate['median']:,.0f}",
                format_range(rate),
                f"{ratio['median']:.2f}" if ratio else "-",
                format_range(ratio, 2) if ratio else "-",
                f"{share:.0%}" if share is not None else "-",
                f"{c['seconds']['median']:.3g}",
                phases or "-",
            ]
        )
    columns = ["system", "tokens/s", "range", "speedup", "range", "of limit", "seconds", "of these"]
    return ReportTable(workload["title"], columns, rows), [
        *(limit_line(d, x) for d, x in workload["limits"].items()),
        *extra_lines(workload),
        *notes,
    ]


def limit_line(dtype: str, x: Mapping[str, Any]) -> str:
    """A limit and its terms, in one line."""
    return (
        f"limit {dtype}: {x['tokens_per_second']:,.0f} tokens/s by {x['bound_by']}: {x['flops_per_token'] / 1e6:,.2f} "
        "MFLOP a token "
        f"at {x['flop_per_second'] / 1e9:,.0f} GFLOP/s, {x['bytes_per_token'] / 1e6:,.3f} MB a token at "
        f"{x['bytes_per_second'] / 1e9:,.0f} GB/s"
    )


def extra_lines(workload: Mapping[str, Any]) -> list[str]:
    """Lines for what a workload gives besides rates."""
    lines: list[str] = []
    if turns := workload.get("turns"):
        lines.append(f"tokens computed over tokens needed: {turns['computed_over_needed']:.3f}")
    if forks := workload.get("forks"):
        lines.append(
            f"a fork copies {forks['copied_per_fork']:,.0f} tokens of the cache and computes "
            f"{forks['prefilled_per_fork']:,.1f}"
        )
    if "gradient_error" in workload:
        lines.append(
            f"gradient with shared against separate prompts in float32, |a - b| / |b|: {workload['gradient_error']:.1e}"
        )
    if memory := workload.get("memory"):
        lines.append(
            f"memory: {memory['early_bytes'] / 1e6:,.1f} MB early, {memory['late_bytes'] / 1e6:,.1f} MB late, "
            f"{memory['bytes_per_step'] / 1e3:,.2f} kB more a step"
        )
    return lines
