"""The methods of a family side by side: one set of held-out questions, as many sampled tokens for each, over seeds."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..analysis import statistics
from ..analysis.side_by_side import read_result
from ..configuration import RunConfig, task_source
from ..core import registry
from ..core.cache import cache_folder
from ..core.claim import FIRST_SEED
from ..core.errors import BadValue, SelfteachError, unknown
from ..core.method import MethodEntry
from ..core.regime import Regime
from ..core.serial import plain, write_json
from ..core.task import TaskSource
from ..loop import method_on_task
from ..loop.session import Observer, ignore_events
from .arms import Arm, regime_config, with_decoders
from .reproduce import MAX_STEP_FACTOR, versions
from .runs import OutOfTime, RunPool, RunRequest, available_cores

FORMAT = 1
MEASURES = ("accuracy", "greedy", "f1", "calls", "length", "search/needless", "search/missed", "search/recall")


class Family(NamedTuple):
    """What a family is compared on.

    regime  the task, the model, its warm start, and what all methods share
    methods these alone; (): all published methods of the family that has its name
    own     options of the task that each method has as in its claim: what its demonstrations say
    also    methods of other families that belong here
    shown   decoders that are shown beside a method's own program
    against the method to which the others are compared, seed by seed; "": none
    tokens  that each run samples, unless said otherwise
    apart   method -> why it cannot be compared there, for readers; for any other it is the error that says so
    """

    regime: str
    methods: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    against: str = ""
    tokens: int = 250_000
    apart: Mapping[str, str] = MappingProxyType({})


NO_PLACE = {
    "cts_llm": "It leads a conversation through a graph of questions and answers that experts wrote. These are single"
    " questions about facts, and behind them is no such graph.",
    "hier_search": "Its planner divides a question between two agents, each with a source that has half of the facts."
    " Here one engine finds all facts, so there is nothing to divide.",
    "router_r1": "It chooses among experts of other knowledge and price, whom it asks by name, and is paid for what it"
    " saves. Here one engine answers, and costs nothing, so there is nothing to choose.",
}
FAMILIES = {
    "search": Family(
        "search_side_by_side",
        own=("says",),
        also=("ssp", "asearcher", "behavior_priming"),
        shown=("search",),
        against="search_r1",
        apart=NO_PLACE,
    ),
    # four methods and few tokens: on a model of real language a run takes minutes
    "search_smollm2": Family(
        "real_search",
        methods=("ssrl", "zerosearch", "ikea", "search_r1"),
        shown=("search",),
        against="search_r1",
        tokens=60_000,
    ),
}


class Lineup(NamedTuple):
    """The methods that are compared, and of those that cannot be, why."""

    arms: Mapping[str, Arm]
    apart: Mapping[str, str]


def members(family: str) -> list[str]:
    """The published methods of a family, by name: those with a card, without the variants of others."""
    if family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    if FAMILIES[family].methods:
        return list(FAMILIES[family].methods)
    also = FAMILIES[family].also
    return [n for n, e in registry.methods.items() if e.catalogue and (e.family == family or n in also)]


def lineup(
    family: str,
    methods: Sequence[str] = (),
    tokens: int | None = None,
    task_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    model: str | None = None,
) -> Lineup:
    """The runs of a family's methods (or of some), each with its own demonstrations on the family's questions.

    Apart is a method that cannot run there, that asks another tool than this task has, or whose own demonstrations come
    with other questions. Raises UnknownName for a family or method that there is not, BadValue for too few tokens.
    """
    named = members(family)
    for name in methods:
        if name not in named:
            raise unknown(f"method of family {family}", name, named)
    kind = FAMILIES[family]
    tokens = kind.tokens if tokens is None else tokens
    if tokens < 1:
        raise BadValue(f"side by side: tokens must be 1 or more, not {tokens}")
    home: Regime = registry.regimes.get(kind.regime)
    home = replace(home, task_options={**home.task_options, **(task_options or {})})
    common = task_source(home.task, home.task_options)
    steps = int(home.settings["steps"]) * MAX_STEP_FACTOR
    given = {"steps": steps, **(settings or {}), "budget": tokens}
    arms, apart = dict[str, Arm](), dict[str, str]()
    for name in methods or named:
        entry: MethodEntry[...] = registry.methods.get(name)
        own = {k: v for k, v in _options(entry).items() if k in kind.own}
        try:
            run_config = regime_config(
                replace(home, task_options={**home.task_options, **own}), entry, {}, given, model=model
            )
            source = task_source(run_config.task, run_config.task_options)
            method_on_task.check(run_config.method, source)
        except SelfteachError as error:
            apart[name] = kind.apart.get(name, str(error))
            continue
        if why := _unlike(source, common):
            apart[name] = kind.apart.get(name, why)
        else:
            arms[name] = Arm(name, with_decoders(run_config, kind.shown))
    return Lineup(arms, apart)


def _options(entry: MethodEntry[...]) -> Mapping[str, Any]:
    """The options of the task of a method's claim, or of its home."""
    if entry.claim and entry.claim.regime:
        home: Regime = registry.regimes.get(entry.claim.regime)
        return home.task_options
    return entry.home.options if entry.home else {}


def _unlike(source: TaskSource, common: TaskSource) -> str:
    """Why a task is not the family's: it has another tool, or other questions; "": it is."""
    if more := sorted(source.tools.keys() - common.tools.keys()):
        return f"its agent asks {', '.join(more)}, a tool that this task has not"
    if [(t.prompt, t.answer) for t in source.test] != [(t.prompt, t.answer) for t in common.test]:
        return "what its demonstrations say comes with other questions"
    return ""


def side_by_side(
    family: str,
    methods: Sequence[str] = (),
    seeds: int = 8,
    tokens: int | None = None,
    out: str | Path | None = "results/families",
    first_seed: int = FIRST_SEED,
    observer: Observer = ignore_events,
    store: Path | None = None,
    *,
    jobs: int | None = 1,
    hours: float | None = None,
    task_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """Train the methods of a family (or some of them), each on as many sampled tokens, and measure all alike.

    Every method runs with every seed, a seed after another; after each OUT/FAMILY.json is written. Runs are cached, so
    that what was interrupted goes on, and the same command with more seeds adds to it, on another machine too: what an
    earlier OUT/FAMILY.json holds is not run again. A method whose run fails is named under "apart". Returns what was
    written.

    jobs   how many runs at once; None: as many as there are cores
    hours  begin no run after as many of wall-clock time
    task_options, settings, model  in place of the regime's
    """
    if seeds < 1:
        raise BadValue(f"side by side: seeds must be 1 or more, not {seeds}")
    if seeds > 1:
        statistics.require_scipy()
    found = lineup(family, methods, tokens, task_options, settings, model)
    if not found.arms:
        first, why = next(iter(found.apart.items()))
        raise BadValue(f"family {family}: none of these methods can be compared; {first}: {why}")
    home: Regime = registry.regimes.get(FAMILIES[family].regime)
    deadline = None if hours is None else time.monotonic() + 3600 * hours
    cores = available_cores() if jobs is None else max(1, jobs)
    result = dict[str, Any]()
    known = {} if out is None else known_runs(out, family)
    with RunPool(store or cache_folder("reproduce"), observer, cores, (), known, deadline, tolerant=True) as pool:
        for seed in range(first_seed, first_seed + seeds):
            late = False
            try:
                pool.run(
                    RunRequest(name, seed, arm.run_config.override(**dict[str, Any](home.seeded(seed))))
                    for name, arm in found.arms.items()
                    if not any(failed == name for failed, _ in pool.failed)
                )
            except OutOfTime:
                observer({"event": "out_of_time", "hours": hours})
                late = True
            result = _result(family, found, pool.results, pool.failed)
            if out is not None:
                write_json(Path(out) / f"{family}.json", result)
            if late:
                break
    return result


def known_runs(folder: str | Path, family: str) -> dict[str, dict[str, Any]]:
    """Run key -> the figures of a run in an earlier result; none where there is no file, or it is no such result."""
    try:
        result = read_result(folder, family)
    except BadValue:
        return {}
    runs = [run for method in (result["methods"] if result else {}).values() for run in method["seeds"].values()]
    return {run["key"]: {**run, "seconds": {"training": run["seconds"]}} for run in runs}


def _result(
    family: str,
    found: Lineup,
    runs: Mapping[str, Mapping[int, Mapping[str, Any]]],
    failed: Mapping[tuple[str, int], str],
) -> dict[str, Any]:
    run_config: RunConfig = next(iter(found.arms.values())).run_config
    asked = len(task_source(run_config.task, run_config.task_options).test)
    rows = {name: _row(FAMILIES[family], arm, runs.get(name, {})) for name, arm in found.arms.items()}
    broken = {name: f"seed {seed} failed: {why}" for (name, seed), why in failed.items()}
    return {
        "format": FORMAT,
        "family": family,
        "regime": FAMILIES[family].regime,
        "against": FAMILIES[family].against,
        "task": run_config.task,
        "task_options": plain({k: v for k, v in run_config.task_options.items() if k not in FAMILIES[family].own}),
        "model": run_config.model,
        "tokens": run_config.settings.budget,
        "samples": run_config.final_eval.decoder_samples,
        "questions": min(run_config.final_eval.tasks, asked),
        "methods": {name: row for name, row in rows.items() if row["seeds"]},
        "apart": {**found.apart, **{n: why for n, why in broken.items() if not rows[n]["seeds"]}},
        "failed": broken,
        "versions": versions(),
        "cores": os.cpu_count(),
    }


def _row(kind: Family, arm: Arm, runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """What a result keeps of a method's runs: by seed the figures of its own program and of the decoders that are
    shown, before and after, what it sampled, and the key of the run.
    """
    entry: MethodEntry[...] = registry.methods.get(arm.run_config.method.name)
    kept = [m + tail for tail in ("", *(f"+{d}" for d in kind.shown)) for m in MEASURES]

    def figures(found: Mapping[str, Any] | None) -> dict[str, float]:
        return {name: found[name] for name in kept if found.get(name) is not None} if found else {}

    return {
        "paper": entry.paper,
        "catalogue": list(entry.catalogue),
        "family": entry.family,
        "own": {k: v for k, v in arm.run_config.task_options.items() if k in kind.own},
        "seeds": {
            str(seed): {
                "key": run.get("key"),
                "before": figures(run.get("before")),
                "after": figures(run.get("after")),
                "tokens": run.get("tokens"),
                "seconds": (run.get("seconds") or {}).get("training"),
            }
            for seed, run in sorted(runs.items())
        },
    }
