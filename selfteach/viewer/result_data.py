"""Results of compare, sweep and reproduce, and the ledger, as the page draws them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..analysis import claim_results, claim_section, ledger
from ..analysis.comparison import MEASURES, main_measure, mean_curve
from ..analysis.learning_curve import KINDS
from ..analysis.statistics import probability_of_improvement, summary
from ..core.errors import BadCheckpoint, BadValue
from .curve_data import rounded

MOST_BYTES, MOST_FILES, DEEPEST = 1 << 25, 2000, 4  # of a result; that are looked at; folders below the one given
NO_INTERVAL = "intervals need the package scipy; pip install 'selfteach[claims]'"


def find_results(folder: Path) -> Iterator[tuple[Path, str]]:
    """The results of compare, sweep or reproduce in a folder, outside of runs, each with its kind (`kind_of`)."""
    seen = 0
    for at, folders, files in os.walk(folder):
        here = Path(at)
        if "config.json" in files or len(here.relative_to(folder).parts) >= DEEPEST:
            folders.clear()
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(files) if "config.json" not in files else ():
            if name.endswith(".json") and seen < MOST_FILES:
                seen += 1
                if not (here / name).is_symlink() and (kind := kind_of(here / name)):
                    yield here / name, kind


def kind_of(file: Path) -> str:
    """compare (a sweep too), reproduce, or "" for a file that is neither, by its first bytes and its size."""
    try:
        about = file.stat()
        return "" if about.st_size > MOST_BYTES else _kind(file, about.st_mtime_ns, about.st_size)
    except OSError:
        return ""


@lru_cache(maxsize=4 * MOST_FILES)
def _kind(file: Path, changed: int, size: int) -> str:
    try:
        with file.open("rb") as f:
            head = f.read(1 << 16)
    except OSError:
        return ""
    if b'"arms"' not in head and b'"claim"' not in head and b'"seeds"' not in head:
        return ""
    data = _read(file, quiet=True)
    if not isinstance(data.get("arms"), dict) or "task" not in data:
        return ""
    if "checks" in data and "claim" in data:
        return "reproduce"
    return "compare" if all(isinstance(a, dict) and "curve" in a for a in data["arms"].values()) else ""


def _read(file: Path, quiet: bool = False) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError) as error:
        if quiet:
            return {}
        raise BadCheckpoint(f"{file}: not a result ({error})") from None


def result_page(file: Path) -> dict[str, Any]:
    """A result as the page draws it: arms with curves, final figures, probability of improvement over the first, costs.

    Raises BadCheckpoint for a file that is none.
    """
    data = _read(file)
    try:
        return _claim(data) if "checks" in data else _comparison(data)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadCheckpoint(f"{file}: not a result as compare or reproduce write it ({error})") from None


def _comparison(data: Mapping[str, Any]) -> dict[str, Any]:
    arms, main = data["arms"], main_measure(data["arms"])
    per_seed = {name: arm.get(main, {}).get("per_seed", []) for name, arm in arms.items()}
    return {
        "kind": "compare",
        "title": f"{data['task']}, {data['steps']} steps, {len(data['seeds'])} seeds",
        "main": main,
        "failed": data.get("failed", {}),
        "arms": [
            {
                "name": name,
                "curves": {"greedy": arm["curve"]} if arm["curve"] else {},
                "final": {m: arm[m] for m in MEASURES if m in arm},
                "against": arm.get("against_first"),
                **_improvement(per_seed[name], next(iter(per_seed.values())), not n),
            }
            for n, (name, arm) in enumerate(arms.items())
        ],
    }


def _claim(data: Mapping[str, Any]) -> dict[str, Any]:
    """A result of reproduce."""
    runs = {
        name: [s for s in arm.get("seeds", {}).values() if isinstance(s, dict)] for name, arm in data["arms"].items()
    }
    per_seed = {name: [r["after"].get("accuracy") for r in own] for name, own in runs.items()}
    first = per_seed.get("self") or next(iter(per_seed.values()))
    note = ""
    arms: list[dict[str, Any]] = []
    for name, arm in data["arms"].items():
        final, curves = dict[str, Any](), dict[str, Any]()
        try:
            for figure in ("accuracy", "greedy", "length"):
                values = [r["after"].get(figure) for r in runs[name]]
                if any(v is not None for v in values):
                    final[figure] = {**summary(values), "per_seed": values}
            for kind in KINDS:
                own = [dict(map(tuple, r["curves"][kind])) for r in runs[name] if "curves" in r]
                if points := mean_curve([c for c in own if c]):
                    curves[kind] = points
        except BadValue:
            note = NO_INTERVAL
        cost = {k: {"mean": v} for k, v in arm.get("cost", {}).items()}
        improvement = _improvement(first, per_seed[name], name == "self", "self")
        arms.append({"name": name, "curves": curves, "final": final, "cost": cost, **improvement})
        arms[-1]["differs"] = claim_section.formatted_differences(arm.get("differs", []))
    checks = [
        {
            "kind": c.get("kind", ""),
            "text": c["text"],
            "effect": c["effect"],
            "interval": c["interval"],
            "by": c.get("by"),
            "shown": claim_section.formatted_effect(c),
            "detectable": claim_section.formatted_detectable(c),
            "verdict": c["verdict"],
            "said": claim_section.formatted_verdict(c),
            "per_seed": c.get("per_seed", []),
        }
        for c in data["checks"]
    ]
    return {
        "kind": "reproduce",
        "title": f"{data['method']} in {data.get('regime') or data['task']}, {data['steps']} steps, "
        f"{len(data['seeds'])} seeds",
        "method": data["method"],
        "family": data.get("family", ""),
        "paper": data.get("paper", ""),
        "because": data["claim"].get("because", ""),
        "verdict": data["verdict"] if claim_results.is_decided(data) else claim_results.NOT_YET,
        "decided": claim_results.is_decided(data),
        "main": "accuracy",
        "note": note,
        "checks": checks,
        "arms": arms,
        "versions": data.get("versions", {}),
    }


def _improvement(ours: Sequence[Any], others: Sequence[Any], is_first: bool, of: str = "") -> dict[str, Any]:
    """The probability that a run of an arm is above one of the first; of a claim, that "self" is above the arm's."""
    x, y = ([v for v in side if v is not None] for side in (ours, others))
    if is_first or not x or not y:
        return {"improvement": None}
    p, low, high = probability_of_improvement(x, y)
    known = not math.isnan(low)
    return {"improvement": {"p": rounded(p), "low": low if known else None, "high": high if known else None, "of": of}}


def ledger_page(folders: Sequence[str | Path]) -> dict[str, Any]:
    """A row for each claim that was run, with its verdicts."""
    rows: list[dict[str, Any]] = []
    for r in claim_results.read_results(*folders):
        decided = claim_results.is_decided(r)
        kinds = {
            k: ledger.kind_verdict([c["verdict"] for c in r["checks"] if c.get("kind") == k]) for k in ledger.KINDS
        }
        outcomes = [c for c in r["checks"] if c.get("kind") == "outcome" and c["effect"] is not None]
        rows.append(
            {
                "method": r["method"],
                "family": r["family"],
                "paper": r["paper"],
                **(kinds if decided else dict.fromkeys(kinds, "")),
                "verdict": r["verdict"] if decided else claim_results.NOT_YET,
                "effect": claim_section.formatted_effect(outcomes[0]) if decided and outcomes else "",
                "size": outcomes[0]["effect"] if decided and outcomes else None,
                "regime": r.get("regime") or r["task"],
                "steps": r["steps"],
                "seeds": len(r["seeds"]),
            }
        )
    return {"rows": rows}


def claim_page(folders: Sequence[str | Path], method: str) -> dict[str, Any]:
    """One claim of the ledger. Raises BadValue for a method without one."""
    if (result := claim_results.read_result(method, folders)) is None:
        raise BadValue(f"the ledger has no claim of {method!r}")
    return _claim(result)
