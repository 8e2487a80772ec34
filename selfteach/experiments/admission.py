"""A regime measured on tuning seeds, so that one can see whether it is one: search, baseline, start, control, cost."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ..analysis import statistics, verdict
from ..analysis.comparison import mean_curve
from ..analysis.learning_curve import KINDS
from ..analysis.regime_evidence import admission, definition
from ..configuration import RunConfig, task_source
from ..core import registry
from ..core.answers import canonical, gold_answers
from ..core.blocks import Block
from ..core.cache import cache_folder
from ..core.errors import BadValue
from ..core.method import Method
from ..core.regime import Regime
from ..core.serial import plain, write_json
from ..core.task import TaskSource
from ..loop.session import Observer, ignore_events
from ..loop.settings import split_settings
from ..reward.controls import shuffled, shuffled_stateful
from ..rollout.single import single
from .arms import decoders_read, measures_of, regime_config, samples_per_task, seeded, stated_value, with_decoders
from .reproduce import arm_cost, check_json, run_json, versions
from .runs import RunPool, RunRequest, available_cores, required_figure

FORMAT = 1
SEEDS = 8  # of the baseline; the other parts take the first few of them
SEARCH_SEEDS, START_SEEDS, CONTROL_SEEDS = 2, 4, 8
TUNING_SEEDS = range(100)  # claims are reported on others
EVALUATIONS, SAMPLES, MANY = 10, 4, 64  # on the way, at least; of each question there; of the start, for pass@k
FIGURES = {"greedy": "greedy", "sampled": "accuracy"}  # kind of accuracy -> figure of a finished run


def measure_regime(
    name: str,
    *,
    seeds: int = SEEDS,
    first_seed: int = 0,
    jobs: int | None = 1,
    out: str | Path | None = "results/regimes",
    observer: Observer = ignore_events,
    store: Path | None = None,
    use: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure a regime on tuning seeds and say whether it is admitted; writes OUT/NAME.json and returns its content.

    Its parts, each written when it is done; runs are cached, so that what was interrupted goes on:

        search    every value of the regime's `search`, the others as stated, with two seeds. A run that fails is noted
        baseline  with all seeds: gains, at least ten evaluations on the way, spread, costs, and the regime's failure
        start     the policy before training, with four seeds: greedy, sampled, pass@k, and each way forced. The best of
                  these ways is the ceiling, the worst the floor. Beside them stands what a policy gets that always
                  gives the commonest answer
        control   the baseline with its rewards shuffled, with all seeds (a policy that learns nothing wanders)

    jobs   how many runs at once; None: as many as there are cores
    out    the folder of results; None: nothing is written
    store  the folder of cached runs; None: that of selfteach's cache
    use    files of the user's own, as `configuration.plan` takes them

    Raises BadValue, before any run, for seeds that are not for tuning and a search of what the baseline does not have.
    """
    if seeds < 1 or first_seed not in TUNING_SEEDS or first_seed + seeds - 1 not in TUNING_SEEDS:
        raise BadValue(
            f"regime {name}: {seeds} seeds from {first_seed} on are not {seeds or 'any'} of the tuning seeds,"
            f" {TUNING_SEEDS.start} to {TUNING_SEEDS.stop - 1}"
        )
    home: Regime = registry.regimes.get(name)
    statistics.require_scipy()
    base = baseline_config(home, use)
    tried = searched_configs(home, base)
    start, control = start_config(home, base), control_config(base)
    cores = available_cores() if jobs is None else max(1, jobs)
    measures = sorted(measures_of([home.failure])) if home.failure else []
    result: dict[str, Any] = _about(home, base, range(first_seed, first_seed + seeds), cores)
    with RunPool(store or cache_folder("reproduce"), observer, cores, measures) as pool:
        measured = Measurement(home, base, pool, tuple(range(first_seed, first_seed + seeds)))
        parts = {
            "search": lambda: measured.search(tried),
            "baseline": measured.baseline,
            "start": lambda: measured.start(start),
            "control": lambda: measured.control(control),
        }
        for part, measure in parts.items():
            result[part] = plain(measure())
            result["admitted"], result["why"] = admission(result)
            if out is not None:
                write_json(Path(out) / f"{name}.json", result)
            observer({"event": "part", "part": part, "why": result["why"]})
    return result


def _about(home: Regime, base: RunConfig, seeds: Sequence[int], cores: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "regime": home.name,
        "doc": home.doc,
        "shows": home.shows,
        "admits": home.admits,
        "definition": definition(home),
        "method": base.method.name,
        "steps": base.settings.steps,
        "seeds": list(seeds),
        "versions": versions(),
        "cores": os.cpu_count(),
        "jobs": cores,
    }


# ---- configurations


def baseline_config(home: Regime, use: Sequence[str] = ()) -> RunConfig:
    """The configuration of a regime's baseline, with evaluations enough on the way to draw its curve."""
    read = measures_of([home.failure] if home.failure else ())
    made = with_decoders(regime_config(home, home.baseline, use=use), decoders_read(read))
    s, change = made.settings, dict[str, Any]()
    if not s.eval_every or (s.steps - 1) // s.eval_every < EVALUATIONS:
        change["eval_every"] = max(1, (s.steps - 1) // EVALUATIONS)
    if not s.eval_samples:
        change["eval_samples"] = SAMPLES
    if (k := samples_per_task(read)) > made.final_eval.k:
        change["final_eval_k"] = k
    return made.override(**change)


def searched_configs(home: Regime, base: RunConfig) -> dict[str, list[tuple[Any, bool, RunConfig]]]:
    """Per name in the regime's search: (value, whether it is the stated one, configuration) of every value.

    The stated value comes first where the search leaves it out. Other configurations are evaluated at their ends alone.
    What the regime states as a setting is searched as one, also where its baseline has a hyper-parameter of that name.

    Raises UnknownName for what is neither a setting nor a hyper-parameter of the baseline, BadValue for what is both.
    """
    entry = registry.methods.get(home.baseline)
    out: dict[str, list[tuple[Any, bool, RunConfig]]] = {}
    for name, values in home.search.items():
        if name in home.settings:
            own, stated = False, home.settings[name]
        else:
            own, stated = bool(split_settings(entry, {name: values[0]}, {}, {})[0]), stated_value(base, name)
        out[name] = []
        for value in values if stated in values else (stated, *values):
            change = {"args": {name: value}} if own else {"settings": {name: value}}
            other = regime_config(home, entry, use=base.use, **change).override(eval_every=0, final_eval_k=0)
            out[name].append((value, value == stated, base if value == stated else other))
    return out


def start_config(home: Regime, base: RunConfig) -> RunConfig:
    """The configuration of a run of no steps, which measures what it starts from: by itself, and each way forced."""
    main = base.method.eval_program(base.method.stage)
    forced = {
        way: main.replace(prefix=prefix) if "prefix" in main.hyper_parameters else single(prefix=prefix)
        for way, prefix in home.ways.items()
    }
    made = base.override(steps=0, eval_every=0, final_eval_k=max(MANY, base.final_eval.k))
    return replace(made, method=replace(made.method, decode={"main": main, **forced}))


def control_config(base: RunConfig) -> RunConfig:
    """The baseline with each of its rewards dealt out anew among the trajectories of a step."""

    def dealt(method: Method) -> Method:
        stages = [replace(s, reward=tuple(_shuffled(r) for r in s.reward)) for s in method.stages]
        return replace(method, stages=tuple(stages))

    return replace(base.override(final_eval_k=0), method=dealt(base.method))


def _shuffled(reward: Block) -> Block:
    return (shuffled_stateful if "state" in reward.needs else shuffled)(reward=reward)


# ---- parts


@dataclass(frozen=True)
class Measurement:
    """A regime being measured: its baseline, the pool that carries out runs, and the seeds."""

    home: Regime
    base: RunConfig
    pool: RunPool
    seeds: tuple[int, ...]

    def runs(self, arm: str, config: RunConfig, seeds: Sequence[int]) -> list[dict[str, Any]]:
        """The figures of a configuration's runs with these seeds."""
        self.pool.run(self._requests(arm, config, seeds))
        return [self.pool.results[arm][s] for s in seeds]

    def _requests(self, arm: str, config: RunConfig, seeds: Sequence[int]) -> list[RunRequest]:
        return [RunRequest(arm, s, seeded(config, self.home, s)) for s in seeds]

    def search(self, tried: Mapping[str, Sequence[tuple[Any, bool, RunConfig]]]) -> list[dict[str, Any]]:
        """Per name its values: greedy and sampled accuracy at the end, and "figure", what it is tuned by: the regime's
        `tuned_by`, or the mean of the two.

        The figure is None where a run failed; "failed" then says how.
        """
        seeds, pool = self.seeds[:SEARCH_SEEDS], self.pool
        arms = {(n, i): f"{n}={value}" for n, rows in tried.items() for i, (value, _, _) in enumerate(rows)}
        pool.tolerant = True
        pool.run(r for (n, i), arm in arms.items() for r in self._requests(arm, tried[n][i][2], seeds))
        pool.tolerant = False
        out: list[dict[str, Any]] = []
        for name, rows in tried.items():
            values: list[dict[str, Any]] = []
            for i, (value, stated, _) in enumerate(rows):
                figures = search_figures(pool, arms[name, i], seeds, self.home.tuned_by)
                values.append({"value": value, "stated": stated, **figures})
            out.append({"name": name, "seeds": list(seeds), "values": values})
        return out

    def baseline(self) -> dict[str, Any]:
        """Gains with intervals, the curve, the spread at the end, what a run costs, the regime's failure, the runs."""
        runs = self.runs("baseline", self.base, self.seeds)
        failure = self.home.failure
        return {
            **_learning(runs),
            "spread": {kind: _spread(_figures(runs, "after", kind)) for kind in KINDS},
            "cost": _cost(runs),
            "failure": _failure_json(failure, runs) if failure else None,
            "runs": self._kept(runs, self.seeds),
            "seeds": list(self.seeds),
        }

    def start(self, config: RunConfig) -> dict[str, Any]:
        """What it starts from: accuracies, pass@k, each way forced, and of these the best and the worst.

        A run of no steps is measured twice, with other samples; both count.
        """
        seeds = self.seeds[:START_SEEDS]
        runs = self.runs("start", config, seeds)

        def figure(name: str) -> float | None:
            return _mean([run[when].get(name) for run in runs for when in ("before", "after")])

        ways: dict[str, dict[str, Any]] = {
            way: {
                "prefix": prefix,
                **{kind: figure(f"{f}+{way}") for kind, f in FIGURES.items()},
                "length": figure(f"length+{way}"),
            }
            for way, prefix in self.home.ways.items()
        }
        order = sorted((w for w in ways if ways[w]["sampled"] is not None), key=lambda w: ways[w]["sampled"])
        ks = sorted({int(k[5:]) for run in runs for k in run["before"] if k.startswith("pass@") and "+" not in k})
        return {
            "seeds": list(seeds),
            **{kind: figure(f) for kind, f in FIGURES.items()},
            "length": figure("length"),
            "pass_at_k": {str(k): figure(f"pass@{k}") for k in ks},
            "ways": ways,
            "ceiling": order[-1] if order else None,
            "floor": order[0] if order else None,
            "constant": constant_answer(task_source(self.base.task, self.base.task_options)),
            "keys": {str(s): r["key"] for s, r in zip(seeds, runs, strict=True)},
        }

    def control(self, config: RunConfig) -> dict[str, Any]:
        """The change of sampled accuracy under shuffled rewards, with its interval; the curve; the runs."""
        seeds = self.seeds[:CONTROL_SEEDS]
        runs = self.runs("control", config, seeds)
        found = _learning(runs)
        return {
            **found,
            "change": found["gain"]["sampled"],
            "runs": self._kept(runs, seeds),
            "seeds": list(seeds),
        }

    def _kept(self, runs: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
        named = measures_of([self.home.failure]) if self.home.failure else set[str]()
        return {str(s): run_json(r, named) for s, r in zip(seeds, runs, strict=True)}


def constant_answer(source: TaskSource) -> dict[str, Any] | None:
    """The answer that is right to most test questions, and to which share of them; None where these are played and not
    answered, one has no answer, or judges answers by a verifier of its own, or all have the same.
    """
    tasks = source.test
    if (
        source.program is not None
        or not tasks
        or any(task.verifier is not None or not gold_answers(task) for task in tasks)
    ):
        return None
    found = Counter(key for task in tasks for key in {canonical(gold) for gold in gold_answers(task)} - {None})
    answer, n = found.most_common(1)[0]
    return {"answer": answer, "share": n / len(tasks)} if n < len(tasks) else None


def _figures(runs: Sequence[Mapping[str, Any]], when: str, kind: str) -> list[float | None]:
    return [run[when].get(FIGURES[kind]) for run in runs]


def _mean(values: Sequence[float | None]) -> float | None:
    return statistics.summary(values)["mean"]  # pyright: ignore[reportReturnType]  its mean is one number


def _spread(values: Sequence[float | None]) -> float | None:
    """The standard deviation over seeds."""
    known = [v for v in values if v is not None]
    return statistics.mean_and_error(known)[1] * len(known) ** 0.5 if len(known) > 1 else None


def search_figures(pool: RunPool, arm: str, seeds: Sequence[int], tuned_by: str = "") -> dict[str, Any]:
    """Greedy and sampled accuracy at the end of an arm's runs, and "figure": `tuned_by`, or the mean of the two.

    All are None where a run failed; "failed" then says how.
    """
    failed = next((pool.failed[arm, s] for s in seeds if (arm, s) in pool.failed), "")
    if failed:
        return {"greedy": None, "sampled": None, "figure": None, "failed": failed}
    runs = [pool.results[arm][s] for s in seeds]
    found = {kind: _mean(_figures(runs, "after", kind)) for kind in FIGURES}
    if tuned_by:
        return {**found, "figure": _mean([required_figure(run, tuned_by) for run in runs]), "failed": ""}
    known = [v for v in found.values() if v is not None]
    return {**found, "figure": sum(known) / len(known) if len(known) == len(found) else None, "failed": ""}


def _learning(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Accuracy before and after as means over seeds, the change with its interval, and the mean curve with its band."""
    out: dict[str, Any] = {"before": {}, "after": {}, "gain": {}, "curve": {}}
    for kind in FIGURES:
        before, after = _figures(runs, "before", kind), _figures(runs, "after", kind)
        out["before"][kind], out["after"][kind] = _mean(before), _mean(after)
        gains = [a - b for b, a in zip(before, after, strict=True) if a is not None and b is not None]
        out["gain"][kind] = statistics.summary(gains)
        curves = [dict(run["curves"][kind]) for run in runs]
        out["curve"][kind] = mean_curve([c for c in curves if c])
    return out


def _cost(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """What a run takes, as the median over seeds: as `arm_cost`, with its steps, its warm start and all its seconds."""

    def middle(values: Sequence[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return median(known) if known else None

    more = {f"seconds_{n}": middle([(run.get("seconds") or {}).get(n) for run in runs]) for n in ("warm", "all")}
    return {**arm_cost(runs), "steps": middle([run.get("steps") for run in runs]), **more}


def _failure_json(failure: Any, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The regime's own check with what was measured; the arm "start" is a run as it was before training."""
    by_seed = [{"baseline": run, "start": {"before": run["before"], "after": run["before"]}} for run in runs]
    return check_json(verdict.evaluate_check(failure, by_seed))
