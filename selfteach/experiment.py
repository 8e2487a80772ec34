"""Runs of runs: methods compared over seeds, and claims reproduced. Ordinary Python around `api.train`.

Every run is kept by content (`kept`), so that an experiment that was interrupted goes on, and two claims with the same baseline share it.
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
from .analysis import contrast, verdict
from .api import Job, Observer, silent
from .core import registry
from .core.cache import cache_folder
from .core.errors import BadValue
from .core.method import Check, Claim, Entry
from .kept import content, evals, finished, logged, once, write_json
from .loop.checkpoint import disk_error
from .loop.log import plain

FORMAT = 1
FIRST_SEED = 100  # of a report: seeds 0 to 99 are for tuning
ENDLESS = 20  # with an equal number of tokens, steps are bounded by so many times the claim's


@dataclass(frozen=True)
class Arm:
    """One side of an experiment: a name for people, and the job without its seed."""

    name: str
    job: Job

    def seeded(self, seed: int, **change: Any) -> Job:
        return api.changed(self.job, seed=seed, **change)


class Plan:
    """Runs done one after another, each announced; what was found is kept by arm and seed."""

    def __init__(self, total: int, store: Path, observer: Observer):
        self.total, self.store, self.observer, self.number = total, store, observer, 0
        self.found: dict[str, dict[int, dict[str, Any]]] = {}

    def do(self, arm: str, seed: int, job: Job) -> dict[str, Any]:
        """Figures (before, after, tokens, steps, seconds, evals) of an arm at a seed."""
        self.number += 1
        reused = finished(self.store / content(job)) is not None
        self.observer({"event": "arm", "arm": arm, "seed": seed, "number": self.number, "total": self.total, "reused": reused})
        folder = once(job, self.store, self.observer)
        figures = finished(folder) or {}
        figures["evals"], figures["logged"] = evals(folder), logged(folder)
        self.found.setdefault(arm, {})[seed] = figures
        return figures


# ---- compare


def compare(arms: Sequence[Arm], seeds: Sequence[int], out: str | Path, observer: Observer = silent) -> dict[str, Any]:
    """Every arm with every seed, the same number of steps for all; writes OUT/NAME.json and OUT/NAME.png and returns the result.

    Runs lie in OUT/runs and are reused by any comparison with the same folder. Raises BadValue for two arms of one name or other budgets.
    """
    names = [a.name for a in arms]
    if len(set(names)) < len(names):
        raise BadValue(f"compare: two of {', '.join(names)} are the same; give each once")
    budgets = {(a.job.settings.steps, a.job.budget, a.job.task, json.dumps(plain(a.job.knobs), sort_keys=True)) for a in arms}
    if len(budgets) > 1:
        raise BadValue("compare: the arms differ in task or budget; give all the same task, options and steps")
    home = Path(out)
    plan = Plan(len(arms) * len(seeds), home / "runs", observer)
    for seed in seeds:
        for arm in arms:
            plan.do(arm.name, seed, arm.seeded(seed))
    job = arms[0].job
    runs = {n: [_flat(plan.found[n][s]) for s in seeds] for n in names}
    result = {
        "format": FORMAT,
        "task": job.task,
        "knobs": plain(dict(job.knobs)),
        "model": job.model,
        "steps": job.settings.steps,
        "seeds": list(seeds),
        "arms": contrast.contrast(runs),
    }
    name = re.sub(r"[^\w=.-]+", "_", "-".join([job.task, *names]))[:120]
    title = f"{', '.join(names)} on {job.task}, {job.settings.steps} steps"
    try:
        result["chart"] = str(contrast.draw(result["arms"], title, home / f"{name}.png"))
    except OSError as error:
        raise disk_error(error, home) from error
    result["file"] = str(home / f"{name}.json")
    write_json(home / f"{name}.json", {k: v for k, v in result.items() if k not in ("chart", "file")})
    return result


def _flat(found: Mapping[str, Any]) -> dict[str, Any]:
    figures = {**found.get("after", {}), "tokens": found.get("tokens"), "seconds": found.get("seconds", {}).get("training")}
    return {"figures": figures, "evals": found["evals"]}


# ---- reproduce


def claimed_arms(entry: Entry, steps: int | None = None, **change: Any) -> dict[str, Arm]:
    """The arms of a method's claim, "self" first, each at the claim's task and steps. Raises BadValue where there is no claim to run."""
    claim = entry.claim
    if claim is None:
        raise BadValue(f"method {entry.name}: makes no claim, so there is nothing to reproduce (a baseline or a variant; see selfteach methods)")
    if claim.equal == "wall":
        raise BadValue(f"method {entry.name}: its claim gives every arm the same wall time, which reproduce cannot do yet; steps and tokens it can")
    common = {"steps": steps or claim.steps, "survey_k": deepest(claim), "eval_every": 0, **change}
    out: dict[str, Arm] = {}
    for name, said in {"self": entry.name, **claim.arms}.items():
        method, args = (said, {}) if isinstance(said, str) else said
        out[name] = Arm(name, api.plan(method, claim.task, claim.knobs, args=args, **common))
    for check in claim.checks:
        check_names(entry.name, check, out)
    return out


def check_names(method: str, check: Check, arms: Mapping[str, Arm]) -> None:
    """Say before any run where a check names an arm that is not there."""
    right = check.right.rpartition(" of ")[2] if isinstance(check.right, str) else "start"
    for name in (check.left, right):
        if name != "start" and name not in arms:
            raise BadValue(f"method {method}: its claim speaks of an arm {name!r}, and has only {', '.join(arms)}")


def deepest(claim: Claim) -> int:
    """How many samples a claim's checks ask of a question: 64, or none where no check reads pass@k, a majority or distinct answers.

    Few different values, so that claims share runs.
    """
    words = [w for c in claim.checks for w in (c.measure, str(c.right).partition(" of ")[0])]
    asked = [int(w.partition("@")[2].partition("+")[0].partition("/")[0]) for w in words if w.startswith("pass@")]
    return max([64, *asked]) if asked or any(w.startswith(("maj", "distinct")) for w in words) else 0


def reproduce(
    name: str,
    seeds: int = 3,
    steps: int | None = None,
    out: str | Path | None = "results",
    first_seed: int = FIRST_SEED,
    observer: Observer = silent,
    store: Path | None = None,
    **change: Any,
) -> dict[str, Any]:
    """Run a method's claim and say what it is worth here; writes OUT/METHOD.json (out None: nothing) and returns what is in it.

    All arms get the claim's steps; with `equal="tokens"` the others stop at the tokens that "self" sampled with that seed. `change`: fields of
    Settings, Warm and Survey for all arms, or another model; what they were is in the result.
    """
    if seeds < 1:
        raise BadValue(f"reproduce: seeds must be 1 or more, not {seeds}")
    entry: Entry = registry.methods.get(name)
    arms = claimed_arms(entry, steps, **change)
    claim = entry.claim
    assert claim is not None
    chosen = list(range(first_seed, first_seed + seeds))
    plan = Plan(len(arms) * seeds, store or cache_folder("reproduce"), observer)
    for seed in chosen:
        spent: int | None = None
        for arm in arms.values():
            more = {} if not spent or claim.equal != "tokens" else {"budget": spent, "steps": arm.job.settings.steps * ENDLESS}
            figures = plan.do(arm.name, seed, arm.seeded(seed, **more))
            spent = figures.get("tokens") if arm.name == "self" else spent
    found = [verdict.find(c, [{a: plan.found[a][s] for a in arms} for s in chosen]) for c in claim.checks]
    result = _result(entry, arms, chosen, plan, found, change)
    if out is not None:
        write_json(Path(out) / f"{name}.json", result)
    return result


def _result(
    entry: Entry, arms: Mapping[str, Arm], seeds: Sequence[int], plan: Plan, found: Sequence[verdict.Finding], change: Mapping[str, Any]
) -> dict[str, Any]:
    claim = entry.claim
    assert claim is not None
    job = arms["self"].job
    measured = {w for c in claim.checks for w in (c.measure, str(c.right).partition(" of ")[0])}
    told: dict[str, Any] = {}
    for name, arm in arms.items():
        runs = {str(s): {k: plan.found[name][s].get(k) for k in ("before", "after", "steps", "tokens", "seconds")} for s in seeds}
        for s in seeds:  # of what was logged, only what the claim speaks of
            runs[str(s)]["logged"] = {n: v for n, v in plan.found[name][s]["logged"].items() if n in measured}
        told[name] = {"method": arm.job.method.name, "args": {k: repr(v) for k, v in arm.job.method.args.items()}, "seeds": runs}
    checks = [
        {
            "text": verdict.sentence(f.check),
            **{k: getattr(f.check, k) for k in ("measure", "left", "right", "by", "relation", "scale")},
            "per_seed": f.per_seed,
            "effect": f.effect,
            "interval": f.interval,
            "verdict": f.verdict,
            "why": f.why,
        }
        for f in found
    ]
    return {
        "format": FORMAT,
        "method": entry.name,
        "family": entry.family,
        "paper": entry.paper,
        "catalogue": list(entry.catalogue),
        "claim": verdict.claim_json(claim),
        "verdict": verdict.overall([f.verdict for f in found]),
        "checks": checks,
        "task": job.task,
        "knobs": dict(job.knobs),
        "model": job.model,
        "steps": job.settings.steps,
        "changed": {k: v for k, v in change.items() if k != "use"},
        "seeds": list(seeds),
        "arms": told,
        "versions": versions(),
        "cores": os.cpu_count(),
        "seconds": sum((r["seconds"] or {}).get("all", 0.0) for a in told.values() for r in a["seeds"].values()),
    }


def versions() -> dict[str, str]:
    """What the figures may depend on besides the configuration."""
    import numpy
    import torch

    import selfteach

    return {"selfteach": selfteach.__version__, "python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__}
