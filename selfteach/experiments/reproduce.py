"""A method's claim run as an experiment: all arms over seeds, looked at 8, 12, 16 and 24 seeds, and judged."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from ..analysis import statistics, verdict
from ..analysis.statistics import LOOKS
from ..core import registry
from ..core.cache import cache_folder
from ..core.claim import Claim
from ..core.errors import BadValue
from ..core.method import MethodEntry
from ..core.regime import Regime
from ..core.serial import write_json
from ..core.versions import version
from ..loop.session import Observer, ignore_events
from .arms import (
    Arm,
    ArmDifference,
    arm_differences,
    claim_arms,
    decoders_read,
    figures_of,
    figures_read,
    measures_of,
    refuse_unexplained,
    with_decoders,
)
from .runs import OutOfTime, RunPool, RunRequest, available_cores

FORMAT = 2
COSTS = ("tokens", "learned", "optimiser_steps", "seconds")
MAX_STEP_FACTOR = 20  # where tokens or seconds are equal, an arm may take this many times the claim's steps


def reproduce(
    name: str,
    seeds: int | None = None,
    out: str | Path | None = "results",
    first_seed: int | None = None,
    observer: Observer = ignore_events,
    store: Path | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    model: str | None = None,
    use: Sequence[str] = (),
    jobs: int | None = 1,
    max_seeds: int = LOOKS[-1],
    hours: float | None = None,
    experiment: str | None = None,
) -> dict[str, Any]:
    """Run a method's claim with several seeds and judge its checks; writes OUT/METHOD.json and returns its content.

    Without `seeds` it looks at 8, 12, 16 and 24 seeds, at most `max_seeds`, and stops as soon as every check is decided
    or `hours` of wall-clock time are spent; the result is written after each look. A run that an earlier result in OUT
    holds, of the same key, is not done again, so that more seeds are added on any machine. With equal="tokens" or
    "seconds" the other arms stop at what "self" took with that seed. Where seconds count, the arms of a seed run one
    after another, and no run of another claim stands in for one of them: a machine is not always as fast.

    seeds                 one look at this many
    first_seed            None: the claim's
    out                   the folder of results; None: nothing is written
    store                 the folder of cached runs; None: that of selfteach's cache
    settings, model, use  of all arms, in place of the claim's, as `configuration.plan` takes them; the result holds
                          what was changed
    jobs                  how many runs at once; None: as many as there are cores
    experiment            one of the method's experiments in the place of its claim, written to
                          OUT/experiments/METHOD.EXPERIMENT.json

    Raises BadValue, before any run, where an arm differs from "self" in what the claim does not explain.
    """
    looks = _looks(seeds, max_seeds)
    entry: MethodEntry[...] = registry.methods.get(name)
    if experiment is not None:
        entry = entry.with_experiment(experiment)
    arms = claim_arms(entry, settings, model=model, use=use)
    claim = entry.claim
    assert claim is not None
    first_seed = claim.first_seed if first_seed is None else first_seed
    differences = arm_differences(claim, arms)
    if claim.regime:
        refuse_unexplained(name, differences)
    statistics.require_scipy()
    observer({"event": "differences", "arms": {a: [asdict(d) for d in rows] for a, rows in differences.items()}})
    change = {k: v for k, v in {**(settings or {}), "model": model}.items() if v is not None}
    deadline = None if hours is None else time.monotonic() + 3600 * hours
    cores = available_cores() if jobs is None else max(1, jobs)
    result: dict[str, Any] | None = None
    history: list[dict[str, Any]] = []
    store, named = store or cache_folder("reproduce"), measures_of(claim)
    if is_timed(claim):
        store = store / "timed" / result_file(name, experiment).stem
    known = {} if out is None else known_runs(Path(out) / result_file(name, experiment), named)
    with RunPool(store, observer, cores, sorted(named), known, deadline) as pool:
        for n in looks:
            numbers = list(range(first_seed, first_seed + n))
            try:
                run_look(pool, claim, arms, numbers)
            except OutOfTime:
                observer({"event": "out_of_time", "hours": hours})
                if result is not None:
                    break
                numbers = [s for s in numbers if all(s in pool.results.get(a, {}) for a in arms)]
            by_seed = [{a: pool.results[a][s] for a in arms} for s in numbers]
            checks = verdict.evaluate_claim(claim.checks, by_seed, starts_of(claim, numbers))
            history.append({"seeds": len(numbers), "verdicts": [c.verdict for c in checks]})
            result = _result(entry, arms, numbers, pool, checks, change, differences) | {"looks": list(history)}
            result |= {} if experiment is None else {"experiment": experiment}
            if out is not None:
                write_json(Path(out) / result_file(name, experiment), result)
            observer({"event": "look", "seeds": len(numbers), "verdict": result["verdict"]})
            if len(numbers) < n or all(c.verdict != verdict.UNDECIDED for c in checks):
                break
    assert result is not None
    return result


def starts_of(claim: Claim, seeds: Sequence[int]) -> list[int]:
    """The warm start of each seed, as the claim's regime has it now; none without a regime, where each has its own."""
    home: Regime | None = registry.regimes.get(claim.regime) if claim.regime else None
    return home.starts(seeds) if home else []


def result_file(name: str, experiment: str | None = None) -> Path:
    """Where in the folder of results that of a claim, or of an experiment, is written."""
    return Path(f"{name}.json") if experiment is None else Path("experiments") / f"{name}.{experiment}.json"


def _looks(seeds: int | None, max_seeds: int) -> list[int]:
    if seeds is not None:
        if seeds < 1:
            raise BadValue(f"reproduce: seeds must be 1 or more, not {seeds}")
        return [seeds]
    looks = [n for n in LOOKS if n <= max_seeds]
    if not looks:
        raise BadValue(
            f"reproduce: a claim is looked at after {', '.join(map(str, LOOKS))} seeds, so max_seeds must be at least"
            f" {LOOKS[0]}, not {max_seeds}; with `seeds` it is looked at once"
        )
    return looks


def is_timed(claim: Claim) -> bool:
    """Whether a claim compares seconds: a check reads them, or arms are equal in them."""
    return claim.equal == "seconds" or any("time/" in name for name in measures_of(claim))


def run_look(pool: RunPool, claim: Claim, arms: Mapping[str, Arm], seeds: Sequence[int]) -> None:
    """Carry out every arm's run with every seed; where tokens or seconds are equal, those of "self" first.

    An arm is evaluated with those decoders alone that a check reads of it.
    """

    def request(arm: str, seed: int, **more: Any) -> RunRequest:
        home: Regime | None = registry.regimes.get(claim.regime) if claim.regime else None
        own = home.seeded(seed) if home else {"seed": seed}
        read = decoders_read(figures_of(claim, arm))
        return RunRequest(arm, seed, with_decoders(arms[arm].run_config, read).override(**own, **more))

    others = [a for a in arms if a != "self"]
    if claim.equal == "steps":
        asked = [request(a, s) for a in arms for s in seeds]
        if is_timed(claim):
            asked.sort(key=lambda r: r.seed)
        pool.run(asked)
        return
    if claim.equal == "seconds" and len(seeds) > 1:
        for s in seeds:
            run_look(pool, claim, arms, [s])
        return
    pool.run(request("self", s) for s in seeds)
    limits: dict[int, dict[str, Any]] = {}
    for s in seeds:
        own = pool.results["self"][s]
        name = "budget" if claim.equal == "tokens" else "max_seconds"
        limits[s] = {name: own["tokens"] if claim.equal == "tokens" else (own.get("seconds") or {}).get("training")}
    steps = {a: arms[a].run_config.settings.steps * MAX_STEP_FACTOR for a in others}
    pool.run(request(a, s, **limits[s], steps=steps[a]) for a in others for s in seeds)


# ---- the result


def _result(
    entry: MethodEntry[...],
    arms: Mapping[str, Arm],
    seeds: Sequence[int],
    pool: RunPool,
    checks: Sequence[verdict.CheckResult],
    change: Mapping[str, Any],
    differences: Mapping[str, Sequence[ArmDifference]],
) -> dict[str, Any]:
    claim = entry.claim
    assert claim is not None
    run_config = arms["self"].run_config
    named = measures_of(claim)
    by_arm: dict[str, dict[str, Any]] = {}
    for name, arm in arms.items():
        runs = [pool.results[name][s] for s in seeds]
        by_arm[name] = {
            "method": arm.run_config.method.name,
            "args": {k: repr(v) for k, v in arm.run_config.method.args.items()},
            "differs": [asdict(d) for d in differences.get(name, ())],
            "cost": arm_cost(runs),
            "seeds": {str(s): run_json(r, named) for s, r in zip(seeds, runs, strict=True)},
        }
    starts = starts_of(claim, seeds)
    questions = {s: ((pool.results["self"][s].get("counts") or {}).get("after") or {}).get("questions") for s in seeds}
    return {
        "format": FORMAT,
        "method": entry.name,
        "family": entry.family,
        "paper": entry.paper,
        "catalogue": list(entry.catalogue),
        "claim": verdict.claim_json(claim),
        "regime": claim.regime,
        "verdict": verdict.overall(checks),
        "checks": [check_json(c) for c in checks],
        "task": run_config.task,
        "task_options": dict(run_config.task_options),
        "model": run_config.model,
        "steps": run_config.settings.steps,
        "samples": run_config.final_eval.decoder_samples,
        "changed": dict(change),
        "seeds": list(seeds),
        "starts": starts,
        "questions": {str(s): q for s, q in questions.items() if q},
        "arms": by_arm,
        "versions": versions(),
        "cores": os.cpu_count(),
        "seconds": sum((r["seconds"] or {}).get("all", 0.0) for a in by_arm.values() for r in a["seeds"].values()),
    }


def run_json(run: Mapping[str, Any], named: set[str]) -> dict[str, Any]:
    """What a result keeps of a run: figures, counts by question, metrics read, curves, warnings, costs, key."""
    out = {k: run.get(k) for k in ("key", "before", "after", "steps", "tokens", "seconds", "curves", "warnings")}
    out["logged"] = {n: v for n, v in run["logged"].items() if n in named}
    out["cost"] = run_cost(run)
    counts = run.get("counts") or {}
    out["counts"] = {w: {k: v for k, v in (c or {}).items() if k != "questions"} for w, c in counts.items()}
    return out


def known_runs(file: Path, named: set[str]) -> dict[str, dict[str, Any]]:
    """Run key -> the figures of a run, of those that an earlier result holds with all the figures that are named.

    A file that is not there, is no result, or is of checks that read other figures holds none.
    """
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        read = {name for c in result["checks"] for name in figures_read(c["measure"], c["right"])}
        runs = [(seed, run) for arm in result["arms"].values() for seed, run in arm["seeds"].items()]
        questions = result["questions"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
    if not named <= read:
        return {}
    known = dict[str, dict[str, Any]]()
    for seed, run in runs:
        if run.get("cost"):  # what a result before this did not keep
            after = {**run["counts"].get("after", {}), "questions": questions.get(seed)}
            known[run["key"]] = {**run, "counts": {**run["counts"], "after": after}}
    return known


def run_cost(run: Mapping[str, Any]) -> dict[str, float | None]:
    """What a run took: tokens sampled and learned, optimiser steps, seconds; None where it was not logged."""
    if run.get("cost"):
        return run["cost"]
    steps = [v for k, v in run["logged"].items() if k.startswith("sum:") and k.endswith("/optimiser_steps")]
    return {
        "tokens": run.get("tokens"),
        "learned": run["logged"].get("sum:tokens/in_loss"),
        "optimiser_steps": sum(steps) if steps else None,
        "seconds": (run.get("seconds") or {}).get("training"),
    }


def arm_cost(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """What a run of an arm takes, as the median of each cost over seeds."""
    costs = [run_cost(run) for run in runs]
    known = {k: [float(v) for c in costs if (v := c[k]) is not None] for k in COSTS}
    return {k: median(v) if v else None for k, v in known.items()}


def check_json(result: verdict.CheckResult) -> dict[str, Any]:
    """A check with what was measured, as plain values."""
    is_open = result.verdict == verdict.UNDECIDED and result.interval is not None and not result.why
    return {
        "text": verdict.describe(result.check),
        **asdict(result.check),
        "per_seed": result.per_seed,
        "effect": result.effect,
        "interval": result.interval,
        "level": statistics.level(len(result.per_seed)),
        "detectable": result.detectable,
        "p": result.p,
        "verdict": result.verdict,
        "why": result.why,
        "smaller_than": verdict.largest_effect(result.check, result.interval or ()) if is_open else None,
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that results depend on."""
    libraries = {name: version(name) for name in ("selfteach", "torch", "numpy", "scipy")}
    return {"python": platform.python_version(), **libraries}
