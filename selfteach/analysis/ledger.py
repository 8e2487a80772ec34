"""The ledger: a page of the verdicts on all claims that were run, made from their results alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import BadCheckpoint
from .figures import is_fraction, markdown

HEAD = """# The ledger

What became of each paper's claim here: on small models and small tasks, with the same budget for every arm. This page
is made by `selfteach ledger` from `selfteach/results/*.json`, which `selfteach reproduce METHOD` writes. A verdict is
reported as measured, whichever it is.

Each check is a difference between two figures, measured once per seed. Brackets hold its 95 % interval, by bootstrap
over seeds. A check *holds* where the whole interval satisfies it, *does not hold here* where the whole interval
violates it, and is *undecided* otherwise and with fewer than three seeds. With three or four seeds the interval reaches
from the smallest to the largest difference seen, so that a true difference of nothing still looks like one in a quarter
or an eighth of the cases: read those verdicts with care. A claim holds if all its checks do.
"""

SHIPPED_RESULTS = Path(__file__).parents[1] / "results"  # results that come with the library


def result_folders() -> list[Path]:
    """The default folders of results: ./results goes before the library's own."""
    return [Path("results"), SHIPPED_RESULTS]


def read_results(*folders: str | Path) -> list[dict[str, Any]]:
    """The results in some folders, ordered by family and name; of a method that in the first folder which has it.

    Raises BadCheckpoint for a file that is not a result.
    """
    out: dict[str, dict[str, Any]] = {}
    for file in (f for folder in folders for f in sorted(Path(folder).glob("*.json"))):
        try:
            data = json.loads(file.read_text())
            for key in ("method", "family", "paper", "claim", "verdict", "checks", "steps", "seeds", "task"):
                _ = data[key]
            out.setdefault(data["method"], data)
        except (ValueError, KeyError, TypeError) as error:
            raise BadCheckpoint(
                f"{file}: not a result of selfteach reproduce ({error}); remove it or run the claim again"
            ) from None
    return sorted(out.values(), key=lambda r: (r["family"], r["method"]))


def verdicts(folders: Iterable[str | Path]) -> dict[str, str]:
    """Method -> verdict, from the first folder that has it."""
    return {result["method"]: result["verdict"] for result in read_results(*folders)}


def formatted_difference(check: Mapping[str, Any], value: float | None) -> str:
    """A difference with its sign: fractions in percentage points, ratios in per cent."""
    if value is None:
        return "-"
    if check["scale"] == "ratio":
        return f"{100 * value:+.1f} %"
    return f"{100 * value:+.1f}" if is_fraction(check["measure"]) else f"{value:+.2f}"


def formatted_effect(check: Mapping[str, Any]) -> str:
    """A check's difference and interval as text: `+5.2 [+1.0, +9.3]`."""
    span = f" [{', '.join(formatted_difference(check, v) for v in check['interval'])}]" if check["interval"] else ""
    return formatted_difference(check, check["effect"]) + span


def formatted_verdict(check: Mapping[str, Any]) -> str:
    """A check's verdict as text; where it is undecided, why or how large the effect may be."""
    if check["why"]:
        return f"{check['verdict']} ({check['why']})"
    if check.get("smaller_than") is not None:
        return f"{check['verdict']} (smaller than {formatted_difference(check, check['smaller_than']).lstrip('+')})"
    return check["verdict"]


def formatted_detectable(check: Mapping[str, Any]) -> str:
    """The effect that the seeds of a check would have found with a probability of 80 %, as text."""
    value = check.get("detectable")
    return "-" if value is None else formatted_difference(check, value).lstrip("+")


COSTS = {
    "tokens": "sampled tokens",
    "learned": "learned tokens",
    "optimiser_steps": "optimiser steps",
    "seconds": "seconds of training",
}


def formatted_cost(value: float | None) -> str:
    """A cost as text, with about three digits: 1,230,000 tokens, 0.42 seconds."""
    if value is None:
        return "-"
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """The ledger in Markdown."""
    if not results:
        return HEAD + "\nNo claim has been run yet.\n"
    counts = Counter(r["verdict"] for r in results)
    head = ", ".join(f"{n} {v}" for v, n in sorted(counts.items()))
    rows: list[list[str]] = []
    for r in results:
        budget = f"{r['task']}, {r['steps']} steps, {len(r['seeds'])} seed{'s' if len(r['seeds']) != 1 else ''}"
        rows.append([f"`{r['method']}`", r["family"], paper_link(r["paper"]), f"**{r['verdict']}**", budget])
    out = [
        HEAD,
        f"\n{len(results)} claim{'s' if len(results) != 1 else ''} run: {head}.\n\n",
        markdown(["method", "family", "paper", "verdict", "measured on"], rows),
    ]
    for r in results:
        out.append(f"\n## {r['method']}\n\n{r['claim']['because'][:1].upper()}{r['claim']['because'][1:]}.\n\n")
        checks = [
            [c["text"], formatted_effect(c), c["verdict"] + (f" ({c['why']})" if c["why"] else "")] for c in r["checks"]
        ]
        out.append(markdown(["check", "difference", "verdict"], checks))
        if r.get("changed"):
            out.append("\nNot as claimed: " + ", ".join(f"{k} {v}" for k, v in r["changed"].items()) + ".\n")
        elif r["steps"] != r["claim"]["steps"]:
            out.append(f"\nNot as claimed: {r['steps']} steps instead of {r['claim']['steps']}.\n")
    return "".join(out)


def paper_link(paper: str) -> str:
    """An arXiv number as a link; other text unchanged."""
    return f"[{paper}](https://arxiv.org/abs/{paper})" if paper[:4].isdigit() and paper[4:5] == "." else paper


def write_page(folders: Iterable[str | Path], file: str | Path = "docs/ledger.md") -> Path:
    """Write the page from folders of results. Raises OSError where it cannot be written."""
    out = Path(file)
    text = page(read_results(*folders))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    return out
