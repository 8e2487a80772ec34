"""Whether a regime is admitted: the rule, and the results of its measurement that it is applied to.

A regime is a place where claims can be told apart, so it must be seen to be one. Measured on tuning seeds
(`experiments.admission`), all of these must be so:

    seeds     at least eight of them
    search    the baseline was tuned, and no other value that was tried is better by more than two points
    gain      the baseline raises greedy and sampled accuracy by 20 points at least, each with an interval above 0
    failure   or, where that is what it is for: it shows the failure that it was made to show
    control   with shuffled rewards sampled accuracy rises by three points at most, with an interval that reaches 0 (a
              policy that learns nothing wanders, so the interval may be wide)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.blocks import Block
from ..core.errors import BadCheckpoint
from ..core.regime import Regime
from ..core.serial import plain
from .claim_results import result_folders
from .figures import counted
from .verdict import HOLDS, MIN_SEEDS, describe

GAIN = 0.2  # of greedy and of sampled accuracy, at least
BETTER = 0.02  # that a value of the search is, if it is not to be taken for the stated one's luck
RISE = 0.03  # of sampled accuracy under shuffled rewards, at most
ROUNDING = 1e-9  # 0.7 - 0.5 is to be a gain of 0.2
PARTS = ("search", "baseline", "start", "control")  # of a measurement, in order
ADMITTED, REFUSED, NOT_MEASURED, CHANGED = "admitted", "not admitted", "not measured", "changed since measured"


def admission(evidence: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether a regime with this evidence is admitted, and why, in words.

    evidence  the result of `experiments.admission.measure_regime`, whole or in part. Read are "admits", "search" (per
              name the values with "stated" and "figure"), "baseline" ("seeds", "before", "after", "gain" by kind with
              mean and interval, "failure"), and "control" ("change" with mean and interval)
    """
    if missing := [part for part in PARTS if evidence.get(part) is None]:
        return False, f"not measured yet: {', '.join(missing)}"
    baseline = evidence["baseline"]
    reasons = _too_few_seeds(baseline) + _badly_tuned(evidence["search"])
    if evidence["admits"] == "gain":
        reasons += _too_small_gain(baseline)
    if evidence["admits"] == "failure" or baseline.get("failure"):
        reasons += _no_failure(baseline)
    reasons += _learns_from_nothing(evidence["control"])
    if reasons:
        return False, "; ".join(reasons)
    shown = [
        f"{kind} {_percent(baseline['before'][kind])} to {_percent(baseline['after'][kind])} %"
        for kind in ("greedy", "sampled")
    ]
    if failure := baseline.get("failure"):
        shown.append(f"it shows that {failure['text']}")
    shown.append(f"with shuffled rewards sampled accuracy changes by {_points(evidence['control']['change'])}")
    return True, "; ".join(shown)


def _too_few_seeds(baseline: Mapping[str, Any]) -> list[str]:
    n = len(baseline["seeds"])
    return [f"{counted(n, 'seed')}, and at least {MIN_SEEDS} are needed"] if n < MIN_SEEDS else []


def _badly_tuned(search: Sequence[Mapping[str, Any]]) -> list[str]:
    if not search:
        return ["no search, so nothing says that the baseline is tuned"]
    out: list[str] = []
    for row in search:
        gain, best = gain_of_best(row["values"]), best_of(row["values"])
        if gain is None or best is None:
            out.append(f"{row['name']} as stated could not be measured")
        elif is_better(gain):
            out.append(f"{row['name']}={best['value']} is better by {100 * gain:.1f} points than what is stated")
    return out


def best_of(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Of values that were tried that with the highest figure, the first of equals; None where every one failed.

    >>> best_of([{"figure": None}, {"figure": 0.5, "values": {"lr": 1}}, {"figure": 0.5, "values": {}}])["values"]
    {'lr': 1}
    """
    return max((r for r in rows if r["figure"] is not None), key=lambda r: r["figure"], default=None)


def stated_of(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Of values that were tried the stated one; None where it is not among them."""
    return next((r for r in rows if r["stated"]), None)


def gain_of_best(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """By how much the best of values that were tried is better than the stated one; None where that has no figure.

    >>> gain_of_best([{"figure": 0.5, "stated": False}, {"figure": 0.25, "stated": True}])
    0.25
    """
    best, stated = best_of(rows), stated_of(rows)
    return None if best is None or stated is None or stated["figure"] is None else best["figure"] - stated["figure"]


def is_better(gain: float | None) -> bool:
    """Whether a gain of another value than the stated one is more than that one's luck."""
    return gain is not None and gain > BETTER + ROUNDING


def _too_small_gain(baseline: Mapping[str, Any]) -> list[str]:
    out: list[str] = []
    for kind in ("greedy", "sampled"):
        gain = baseline["gain"][kind]
        if gain["mean"] is None:
            out.append(f"{kind} accuracy was not measured")
        elif gain["mean"] < GAIN - ROUNDING:
            out.append(f"{kind} accuracy gains {_points(gain)}, and {100 * GAIN:g} are needed")
        elif gain["interval"] is not None and not gain["interval"][0] > 0:
            out.append(f"{kind} accuracy gains {_points(gain)}, and the interval must lie above 0")
    return out


def _no_failure(baseline: Mapping[str, Any]) -> list[str]:
    failure = baseline.get("failure")
    if failure is None:
        return ["it is to be admitted by a failure, and none was measured"]
    if failure["verdict"] == HOLDS:
        return []
    return [f"that {failure['text']}: {failure['verdict']}" + (f" ({failure['why']})" if failure.get("why") else "")]


def _learns_from_nothing(control: Mapping[str, Any]) -> list[str]:
    change = control["change"]
    if change["mean"] is None or change["interval"] is None:
        return ["the control needs at least two seeds"]
    if change["mean"] <= RISE + ROUNDING and change["interval"][0] <= 0:
        return []
    return [
        f"with shuffled rewards sampled accuracy changes by {_points(change)}: at most {100 * RISE:g} are let pass,"
        " with an interval that reaches 0"
    ]


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.1f}"


def _points(summary: Mapping[str, Any]) -> str:
    """Mean and interval in points: `+20.5 points [15.2, 25.8]`."""
    span = summary["interval"]
    return f"{100 * summary['mean']:+.1f} points" + (f" [{100 * span[0]:.1f}, {100 * span[1]:.1f}]" if span else "")


# ---- results


def definition(regime: Regime) -> dict[str, Any]:
    """What a regime is, as plain values: a result is of the regime that had this definition."""
    more = {
        "settings": _shown(regime.settings),
        "args": _shown(regime.args),
        "task_options": _shown(regime.task_options),
        "reward": str(regime.reward) if regime.reward is not None else None,
        "ways": regime.ways,
        "search": regime.search,
        "admits": regime.admits,
        "failure": describe(regime.failure) if regime.failure else None,
        **({"tuned_by": regime.tuned_by} if regime.tuned_by else {}),
    }
    return plain({n: getattr(regime, n) for n in ("task", "model", "shows", "baseline", "warm_seeds")} | more)


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, Block) else v for k, v in values.items()}


def regime_folders() -> list[Path]:
    """The default folders of results: ./results/regimes goes before the library's own."""
    return [folder / "regimes" for folder in result_folders()]


def read_evidence(folders: Iterable[str | Path] | None = None) -> dict[str, dict[str, Any]]:
    """Regime -> its result, from the first folder that has one; `folders` None: the default ones.

    Raises BadCheckpoint for a file that is not a result.
    """
    out: dict[str, dict[str, Any]] = {}
    for file in (f for d in (regime_folders() if folders is None else folders) for f in sorted(Path(d).glob("*.json"))):
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            for key in ("regime", "definition", "admitted", "why"):
                _ = data[key]
            out.setdefault(data["regime"], data)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadCheckpoint(
                f"{file}: not a result of selfteach regimes --measure ({error}); remove it or measure the regime again"
            ) from None
    return out


def status(regime: Regime, evidence: Mapping[str, Any] | None) -> str:
    """What is known of a regime: admitted, not admitted, not measured, or changed since it was measured."""
    if evidence is None:
        return NOT_MEASURED
    if evidence["definition"] != definition(regime):
        return CHANGED
    return ADMITTED if evidence["admitted"] else REFUSED


def unadmitted_regimes() -> dict[str, str]:
    """Every regime that is not admitted by the results in the default folders, with its status.

    Raises as `read_evidence` does.
    """
    evidence = read_evidence()
    found = {name: status(registry.regimes.get(name), evidence.get(name)) for name, _ in registry.regimes.items()}
    return {name: how for name, how in found.items() if how != ADMITTED}
