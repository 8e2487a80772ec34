"""Figures of a benchmark as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..analysis.figures import ReportTable

STARTING = {"selfteach --help": "help_seconds", "first finished episode, warm start kept": "first_rollout_seconds"}


def starting(start: Mapping[str, Any]) -> tuple[ReportTable, list[str]]:
    """The times of starting."""
    rows = [[name, f"{start[key]['median']:.2f} s", between(start[key], 2)] for name, key in STARTING.items()]
    return ReportTable("starting", ["what", "median", "range"], rows), [] if start["warm_start_cached"] else [
        "the warm start was not kept"
    ]


def between(spread: Mapping[str, float], digits: int = 0) -> str:
    return f"{spread['low']:,.{digits}f} to {spread['high']:,.{digits}f}"


def table(work: Mapping[str, Any]) -> tuple[ReportTable, list[str]]:
    """One work as a table, with the limit and what it is made of below."""
    rows: list[list[str]] = []
    notes: list[str] = []
    for c in work["contestants"]:
        name = f"{c['name']} {c['variant']}".strip()
        if "tokens_per_second" not in c:
            why = (
                f"{c['missing']}; {c['install']}"
                if c.get("missing")
                else f"failed: {c.get('error', 'no round was measured')}"
            )
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
    return ReportTable(work["title"], columns, rows), [
        *(limit_line(d, x) for d, x in work["limits"].items()),
        *special_lines(work),
        *notes,
    ]


def limit_line(dtype: str, x: Mapping[str, Any]) -> str:
    return (
        f"limit {dtype}: {x['tokens_per_second']:,.0f} tokens/s by {x['bound_by']}: {x['flops_per_token'] / 1e6:,.2f} "
        "MFLOP a token "
        f"at {x['flop_per_second'] / 1e9:,.0f} GFLOP/s, {x['bytes_per_token'] / 1e6:,.3f} MB a token at "
        f"{x['bytes_per_second'] / 1e9:,.0f} GB/s"
    )


def special_lines(work: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if turns := work.get("turns"):
        lines.append(f"tokens computed over tokens needed: {turns['computed_over_needed']:.3f}")
    if forks := work.get("forks"):
        lines.append(
            f"a fork copies {forks['copied_per_fork']:,.0f} tokens of the cache and computes "
            f"{forks['prefilled_per_fork']:,.1f}"
        )
    if "gradient_gap" in work:
        lines.append(
            f"gradient of the shared against the separate in float32, |a - b| / |b|: {work['gradient_gap']:.1e}"
        )
    if memory := work.get("memory"):
        lines.append(
            f"memory: {memory['early_bytes'] / 1e6:,.1f} MB early, {memory['late_bytes'] / 1e6:,.1f} MB late, "
            f"{memory['bytes_per_step'] / 1e3:,.2f} kB more a step"
        )
    return lines
