"""The regimes as the page draws them: what each is, whether it is admitted, its curves, control and evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis.figures import formatted_change
from ..analysis.regime_evidence import ADMITTED, NOT_MEASURED, REFUSED, read_evidence, status
from ..analysis.regime_page import evidence_tables, one_line, regime_rows
from ..core import registry
from ..core.errors import BadCheckpoint, BadValue
from ..core.regime import Regime

KINDS = ("greedy", "sampled")


def regimes_page(folders: Sequence[str | Path]) -> dict[str, Any]:
    """A row for each regime: name, purpose, task, model, baseline, accuracy from start to end, control, status.

    folders  of results: what `selfteach regimes NAME --measure` wrote
    """
    known, evidence = _known(), read_evidence(folders)
    return {"rows": [_row(name, known.get(name), evidence.get(name)) for name in sorted({*known, *evidence})]}


def regime_page(folders: Sequence[str | Path], name: str) -> dict[str, Any]:
    """One regime: its definition, curves of baseline and control, what the start can be forced to, and all tables.

    Raises BadValue for a name that nothing is known of.
    """
    home, found = _known().get(name), read_evidence(folders).get(name)
    if home is None and found is None:
        raise BadValue(f"no regime is called {name!r} here")
    about = dict[str, Any](_row(name, home, found))
    rows = regime_rows(home) if home is not None else [[k, str(v)] for k, v in (found or {})["definition"].items()]
    about |= {"doc": home.doc if home is not None else (found or {})["doc"], "rows": rows}
    about |= {"shows": home.shows if home is not None else (found or {}).get("shows", "")}
    if found is None:
        return {**about, "why": "", "curves": {}, "ways": {}, "tables": []}
    try:
        tables = [{"title": t.title, "columns": t.columns, "rows": t.rows} for t in evidence_tables(found)]
        return {**about, "why": found["why"], "curves": _curves(found), "ways": _ways(found), "tables": tables}
    except (KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(f"regime {name}: its result is not as selfteach regimes wrote it ({error})") from None


def _known() -> Mapping[str, Regime]:
    return dict(registry.regimes.items())


def _row(name: str, home: Regime | None, found: Mapping[str, Any] | None) -> dict[str, Any]:
    definition = found["definition"] if found else {}
    baseline, control = ((found or {}).get(part) for part in ("baseline", "control"))
    row: dict[str, Any] = {
        "name": name,
        "what": one_line(home.doc if home is not None else found["doc"] if found else ""),
        "task": home.task if home is not None else definition.get("task", ""),
        "model": home.model if home is not None else definition.get("model", ""),
        "baseline": home.baseline if home is not None else definition.get("baseline", ""),
        "seeds": len(baseline["seeds"]) if baseline else None,
        "seconds": baseline["cost"].get("seconds") if baseline else None,
        "control": control["change"]["mean"] if control else None,
        "status": status(home, found) if home is not None else _measured(found),
    }
    for kind in KINDS:
        before, after = (baseline[when][kind] if baseline else None for when in ("before", "after"))
        row[kind] = None if before is None or after is None else after - before
        row[kind + "_shown"] = formatted_change(kind, before, after) if baseline else ""
    return row


def _measured(found: Mapping[str, Any] | None) -> str:
    """The status of a regime that only its result tells of: it was registered by a file that is not loaded here."""
    return NOT_MEASURED if found is None else ADMITTED if found["admitted"] else REFUSED


def _curves(found: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """By way of decoding: lines with points and a band, the baseline first, then the control."""
    arms = {found["method"]: found.get("baseline"), "rewards shuffled": found.get("control")}
    return {
        kind: [{"label": label, "points": arm["curve"][kind]} for label, arm in arms.items() if arm]
        for kind in KINDS
        if any(arms.values())
    }


def _ways(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The best and the worst way that the start can be forced to go, with its accuracy by way of decoding."""
    start: Mapping[str, Any] = found.get("start") or {}
    names = dict.fromkeys(way for way in (start.get("ceiling"), start.get("floor")) if way)
    return {f"start, {name}": {kind: start["ways"][name][kind] for kind in KINDS} for name in names}
