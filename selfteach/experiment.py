"""Experiments of many runs: methods compared over seeds, and claims reproduced.

Finished runs are cached (`run_cache`), so that an interrupted experiment continues, and two claims with the same
baseline share its runs.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import api
from .analysis import comparison, verdict
from .api import Observer, RunConfig, ignore_events
from .core import registry
from .core.cache import cache_folder
from .core.errors import BadValue
from .core.method import Check, Claim, MethodEntry
from .core.serial import plain
from .core.versions import version
from .loop.checkpoint import disk_error
from .run_cache import accuracy_curve, finished_figures, logged_summaries, run_key, run_once, write_json

FORMAT = 1
FIRST_SEED = 100  # of reported runs; seeds 0 to 99 are for tuning
MAX_STEP_FACTOR = 20  # where tokens are equal, an arm may take this many times the claim's steps


@dataclass(frozen=True)
class Arm:
    """One side of an experiment: its name in tables, and the configuration of its runs."""

    name: str
    run_config: RunConfig

    def seeded(self, seed: int, **change: Any) -> RunConfig:
        """The configuration of the run with this seed, with other settings where given."""
        return self.run_config.override(seed=seed, **change)


class RunSequence:
    """Runs carried out one after another, each announced to the observer.

    results  arm -> seed -> figures of the run: before, after, tokens, steps, seconds, evals, logged
    """

    def __init__(self, total: int, store: Path, observer: Observer) -> None:
        self.total, self.store, self.observer, self.number = total, store, observer, 0
        self.results: dict[str, dict[int, dict[str, Any]]] = {}

    def run(self, arm: str, seed: int, run_config: RunConfig) -> dict[str, Any]:
        """The figures of an arm with a seed, trained now unless the cache has them."""
        self.number += 1
        reused = finished_figures(self.store / run_key(run_config)) is not None
        self.observer(
            {"event": "arm", "arm": arm, "seed": seed, "number": self.number, "total": self.total, "reused": reused}
        )
        folder = run_once(run_config, self.store, self.observer)
        figures = finished_figures(folder) or {}
        figures["evals"], figures["logged"] = accuracy_curve(folder), logged_summaries(folder)
        self.results.setdefault(arm, {})[seed] = figures
        return figures


# ---- compare


def compare(
    arms: Sequence[Arm], seeds: Sequence[int], out: str | Path, observer: Observer = ignore_events
) -> dict[str, Any]:
    """Run every arm with every seed for the same number of steps, and return the table of results.

    Writes OUT/NAME.json and the chart OUT/NAME.png. Runs are cached in OUT/runs, and reused by any comparison with the
    same folder. Raises BadValue for two arms of one name, and for arms that differ in task or budget.
    """
    names = [a.name for a in arms]
    if len(set(names)) < len(names):
        raise BadValue(f"compare: two of {', '.join(names)} are the same; give each once")
    budgets = {
        (
            a.run_config.settings.steps,
            a.run_config.settings.budget,
            a.run_config.task,
            json.dumps(plain(a.run_config.task_options), sort_keys=True),
        )
        for a in arms
    }
    if len(budgets) > 1:
        raise BadValue("compare: the arms differ in task or budget; give all the same task, options and steps")
    home = Path(out)
    runs = RunSequence(len(arms) * len(seeds), home / "runs", observer)
    for seed in seeds:
        for arm in arms:
            runs.run(arm.name, seed, arm.seeded(seed))
    run_config = arms[0].run_config
    figures = {n: [_final_figures(runs.results[n][s]) for s in seeds] for n in names}
    result: dict[str, Any] = {
        "format": FORMAT,
        "task": run_config.task,
        "task_options": plain(dict(run_config.task_options)),
        "model": run_config.model,
        "steps": run_config.settings.steps,
        "seeds": list(seeds),
        "arms": comparison.compare_arms(figures),
    }
    name = re.sub(r"[^\w=.-]+", "_", "-".join([run_config.task, *names]))[:120]
    title = f"{', '.join(names)} on {run_config.task}, {run_config.settings.steps} steps"
    write_json(home / f"{name}.json", result)
    try:
        chart = str(comparison.draw(result["arms"], title, home / f"{name}.png"))
    except OSError as error:
        raise disk_error(error, home) from error
    except BadValue:  # matplotlib is missing
        chart = None
    return {**result, "chart": chart, "file": str(home / f"{name}.json")}


def _final_figures(run: Mapping[str, Any]) -> dict[str, Any]:
    """The figures after training with tokens and seconds beside them, and the accuracies during it."""
    figures = {
        **run.get("after", {}),
        "tokens": run.get("tokens"),
        "seconds": run.get("seconds", {}).get("training"),
    }
    return {"figures": figures, "evals": run["evals"]}


# ---- reproduce


def claim_arms(entry: MethodEntry[...], settings: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Arm]:
    """The arms of a method's claim, "self" first, each at the claim's task and steps.

    settings  of the runs, in place of the claim's
    more      model and use, as `api.plan` takes them

    Raises BadValue where the method makes no claim.
    """
    claim = entry.claim
    if claim is None:
        raise BadValue(
            f"method {entry.name}: makes no claim (a baseline or a variant), so there is nothing to reproduce; see"
            " selfteach methods"
        )
    common = {"steps": claim.steps, "final_eval_k": samples_per_task(claim), "eval_every": 0, **(settings or {})}
    out: dict[str, Arm] = {}
    for name, arm in {"self": entry.name, **claim.arms}.items():
        method, args = (arm, {}) if isinstance(arm, str) else arm
        out[name] = Arm(name, api.plan(method, claim.task, claim.task_options, args=args, settings=common, **more))
    for check in claim.checks:
        check_arm_names(entry.name, check, out)
    return out


def check_arm_names(method: str, check: Check, arms: Mapping[str, Arm]) -> None:
    """Raise BadValue, before any run, where a check names an arm that the claim does not have."""
    right = check.right.rpartition(" of ")[2] if isinstance(check.right, str) else "start"
    for name in (check.left, right):
        if name != "start" and name not in arms:
            raise BadValue(f"method {method}: its claim names an arm {name!r}, and has only {', '.join(arms)}")


def samples_per_task(claim: Claim) -> int:
    """How many samples of each task a claim's checks need (`final_eval_k`): 64, the largest k above, or 0.

    0 where no check reads pass@k, a majority or distinct answers. Few different values, so that claims share runs.
    """
    words = [w for c in claim.checks for w in (c.measure, str(c.right).partition(" of ")[0])]
    asked = [int(w.partition("@")[2].partition("+")[0].partition("/")[0]) for w in words if w.startswith("pass@")]
    return max([64, *asked]) if asked or any(w.startswith(("maj", "distinct")) for w in words) else 0


def reproduce(
    name: str,
    seeds: int = 3,
    out: str | Path | None = "results",
    first_seed: int = FIRST_SEED,
    observer: Observer = ignore_events,
    store: Path | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    model: str | None = None,
    use: Sequence[str] = (),
) -> dict[str, Any]:
    """Run a method's claim with several seeds and judge its checks; writes OUT/METHOD.json and returns its content.

    All arms get the claim's steps; with `equal="tokens"` the others stop at the tokens that "self" sampled with that
    seed.

    out                   the folder of results; None: nothing is written
    store                 the folder of cached runs; None: that of selfteach's cache
    settings, model, use  of all arms, in place of the claim's, as `api.plan` takes them; the result holds what was
                          changed
    """
    if seeds < 1:
        raise BadValue(f"reproduce: seeds must be 1 or more, not {seeds}")
    entry: MethodEntry[...] = registry.methods.get(name)
    arms = claim_arms(entry, settings, model=model, use=use)
    claim = entry.claim
    assert claim is not None
    change = {k: v for k, v in {**(settings or {}), "model": model}.items() if k != "steps" and v is not None}
    numbers = list(range(first_seed, first_seed + seeds))
    runs = RunSequence(len(arms) * seeds, store or cache_folder("reproduce"), observer)
    for seed in numbers:
        own_tokens: int | None = None
        for arm in arms.values():
            more = (
                {}
                if not own_tokens or claim.equal != "tokens"
                else {"budget": own_tokens, "steps": arm.run_config.settings.steps * MAX_STEP_FACTOR}
            )
            figures = runs.run(arm.name, seed, arm.seeded(seed, **more))
            own_tokens = figures.get("tokens") if arm.name == "self" else own_tokens
    by_seed = [{a: runs.results[a][s] for a in arms} for s in numbers]
    checks = [verdict.evaluate_check(c, by_seed) for c in claim.checks]
    result = _result(entry, arms, numbers, runs, checks, change)
    if out is not None:
        write_json(Path(out) / f"{name}.json", result)
    return result


def _result(
    entry: MethodEntry[...],
    arms: Mapping[str, Arm],
    seeds: Sequence[int],
    runs: RunSequence,
    checks: Sequence[verdict.CheckResult],
    change: Mapping[str, Any],
) -> dict[str, Any]:
    claim = entry.claim
    assert claim is not None
    run_config = arms["self"].run_config
    named = {w for c in claim.checks for w in (c.measure, str(c.right).partition(" of ")[0])}
    by_arm: dict[str, dict[str, Any]] = {}
    for name, arm in arms.items():
        by_seed: dict[str, Any] = {}
        for s in seeds:
            figures = runs.results[name][s]
            by_seed[str(s)] = {k: figures.get(k) for k in ("before", "after", "steps", "tokens", "seconds")}
            by_seed[str(s)]["logged"] = {n: v for n, v in figures["logged"].items() if n in named}
        by_arm[name] = {
            "method": arm.run_config.method.name,
            "args": {k: repr(v) for k, v in arm.run_config.method.args.items()},
            "seeds": by_seed,
        }
    return {
        "format": FORMAT,
        "method": entry.name,
        "family": entry.family,
        "paper": entry.paper,
        "catalogue": list(entry.catalogue),
        "claim": verdict.claim_json(claim),
        "verdict": verdict.overall([c.verdict for c in checks]),
        "checks": [_check_json(c) for c in checks],
        "task": run_config.task,
        "task_options": dict(run_config.task_options),
        "model": run_config.model,
        "steps": run_config.settings.steps,
        "changed": dict(change),
        "seeds": list(seeds),
        "arms": by_arm,
        "versions": versions(),
        "cores": os.cpu_count(),
        "seconds": sum((r["seconds"] or {}).get("all", 0.0) for a in by_arm.values() for r in a["seeds"].values()),
    }


def _check_json(result: verdict.CheckResult) -> dict[str, Any]:
    """A check with what was measured, as plain values."""
    return {
        "text": verdict.describe(result.check),
        **{k: getattr(result.check, k) for k in ("measure", "left", "right", "by", "relation", "scale")},
        "per_seed": result.per_seed,
        "effect": result.effect,
        "interval": result.interval,
        "verdict": result.verdict,
        "why": result.why,
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that results depend on."""
    libraries = {name: version(name) for name in ("selfteach", "torch", "numpy")}
    return {"python": platform.python_version(), **libraries}
