"""Results of `selfteach reproduce` in folders of JSON files: read, and whether they are of the claims as they stand."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.claim import Claim
from ..core.errors import BadCheckpoint
from ..core.serial import plain
from .verdict import arm_text

NOT_YET = "not yet decided again"
ASKED = ("kind", "measure", "left", "right", "by", "relation", "scale")  # of a check; the same in a result's
SHIPPED_RESULTS = Path(__file__).parents[1] / "results"  # results that come with the library


def result_folders() -> list[Path]:
    """The default folders of results: ./results goes before the library's own."""
    return [Path("results"), SHIPPED_RESULTS]


def read_results(*folders: str | Path) -> list[dict[str, Any]]:
    """The results in some folders, ordered by family and name; of a method that in the first folder which has it.

    Raises BadCheckpoint for a file that is not a result.
    """
    out: dict[str, dict[str, Any]] = {}
    for data in map(_read, _files(folders)):
        out.setdefault(data["method"], data)
    return sorted(out.values(), key=lambda r: (r["family"], r["method"]))


def read_result(method: str, folders: Sequence[str | Path]) -> dict[str, Any] | None:
    """The result of one method, of the first folder that has it; None where none has.

    Raises BadCheckpoint for a file that is not a result.
    """
    named = (data for data in map(_read, (f for f in _files(folders) if f.stem == method)) if data["method"] == method)
    found = next(named, None)
    return found or next((r for r in read_results(*folders) if r["method"] == method), None)


def read_experiments(name: str, folders: Iterable[str | Path]) -> dict[str, dict[str, Any]]:
    """Experiment -> its result, of one method, from the first folder that has it."""
    out: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for file in sorted((Path(folder) / "experiments").glob(f"{name}.*.json")):
            out.setdefault(file.stem.removeprefix(f"{name}."), json.loads(file.read_text(encoding="utf-8")))
    return out


def _files(folders: Iterable[str | Path]) -> list[Path]:
    return [f for folder in folders for f in sorted(Path(folder).glob("*.json"))]


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        for key in ("method", "family", "paper", "claim", "verdict", "checks", "steps", "seeds", "task"):
            _ = data[key]
    except (ValueError, KeyError, TypeError) as error:
        raise BadCheckpoint(
            f"{file}: not a result of selfteach reproduce ({error}); remove it or run the claim again"
        ) from None
    return data


def is_decided(result: Mapping[str, Any]) -> bool:
    """Whether a result is of a claim in a regime, as the method has it; else it is to be measured again."""
    return result.get("format", 1) >= 2 and bool(result.get("regime")) and not corrected_since(result)


def claim_of(result: Mapping[str, Any]) -> Claim | None:
    """The claim that a result is of, or the experiment, as it stands; None where there is none any more."""
    if result["method"] not in registry.methods:
        return None
    entry = registry.methods.get(result["method"])
    return entry.experiments[e] if (e := result.get("experiment")) in entry.experiments else entry.claim


def corrected_since(result: Mapping[str, Any]) -> str:
    """Why a result is not of its method's claim as it stands: a fault found since, another regime, other checks.

    "" where it is.
    """
    claim = claim_of(result)
    if claim is None:
        return ""
    if claim.corrected != result["claim"].get("corrected", ""):
        return claim.corrected
    was = result.get("regime")
    if was and was != claim.regime:
        return f"measured in `{was}`, and not yet in `{claim.regime}`"
    asked = [tuple(c.get(k) for k in ASKED) for c in result["checks"]]
    now = [tuple(getattr(c, k) for k in ASKED) for c in claim.checks]
    return "" if asked == now else "its checks are others now"


def verdicts(folders: Iterable[str | Path]) -> dict[str, str]:
    """Method -> verdict, from the first folder that has it."""
    return {r["method"]: r["verdict"] if is_decided(r) else NOT_YET for r in read_results(*folders)}


def read_tuning(folders: Iterable[str | Path]) -> dict[str, dict[str, Any]]:
    """Method -> what tuning its claim found (`tuning/METHOD.json`), from the first folder that has it.

    Left out is what was found of a claim whose regime, settings or arms are others now.
    """
    out: dict[str, dict[str, Any]] = {}
    for file in (f for folder in folders for f in sorted((Path(folder) / "tuning").glob("*.json"))):
        found = json.loads(file.read_text(encoding="utf-8"))
        claim = registry.methods.get(file.stem).claim if file.stem in registry.methods else None
        if claim is None or found.get("claim") == tuned_claim(claim, found["arms"]):
            out.setdefault(file.stem, found)
    return out


def tuned_claim(claim: Claim, arms: Collection[str]) -> dict[str, Any]:
    """What a claim says of arms that are tuned, as plain values: where they run, and with what."""
    texts = {"self": arm_text(("self", claim.args)), **{n: arm_text(a) for n, a in claim.arms.items()}}
    return plain(
        {"regime": claim.regime, "settings": claim.settings, "arms": {n: t for n, t in texts.items() if n in arms}}
    )


def experimented(folders: Iterable[str | Path]) -> dict[str, dict[str, dict[str, Any]]]:
    """Method -> experiment -> its result, of the methods of which experiments beside their claims were run."""
    folders = list(folders)
    files = (f for folder in folders for f in (Path(folder) / "experiments").glob("*.json"))
    return {name: read_experiments(name, folders) for name in sorted({f.name.partition(".")[0] for f in files})}


def with_experiments(
    claims: Sequence[Mapping[str, Any]], experiments: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> list[Mapping[str, Any]]:
    """Results of claims, and behind them those of experiments, each by the name METHOD.EXPERIMENT."""
    beside = [{**r, "method": f"{method}.{name}"} for method, rs in experiments.items() for name, r in rs.items()]
    return [*claims, *beside]
