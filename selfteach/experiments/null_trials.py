"""A against A: how often two arms that are the same are found different in a regime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from ..analysis import statistics
from ..core import registry
from ..core.cache import cache_folder
from ..core.random_keys import generator
from ..core.regime import Regime
from ..loop.session import Observer, ignore_events
from .arms import regime_config, seeded
from .runs import RunPool, RunRequest, required_figure

APART = 1_000_000  # between the run seeds of two runs that share warm start and questions


def null_trials(
    regime: str,
    trials: int = 20,
    measure: str = "accuracy",
    *,
    slots: int = 8,
    jobs: int = 1,
    store: Path | None = None,
    observer: Observer = ignore_events,
    settings: Mapping[str, Any] | None = None,
    use: Sequence[str] = (),
) -> dict[str, Any]:
    """Compare the regime's baseline with itself, `trials` times over `slots` pairs of runs, and count false findings.

    A slot is a warm start and a set of test questions. The runs of a slot differ in their random keys alone, so any two
    of them are a pair of A against A: as many are made as give `trials` different pairs, m (m - 1) / 2 >= trials. Each
    trial takes one pair of each slot, no pair twice, and tests their differences as a claim's check is tested. Trials
    that share runs are not independent, but each errs at its own level.

    Gives "trials" (per_seed, p), "false": how many have p <= 0.05, "false_at_look": at the level of the look with
    so many seeds, "spread": the standard deviation of a pair's difference. Slots are tuning seeds, from 0 on.
    """
    home: Regime = registry.regimes.get(regime)
    statistics.require_scipy()
    base = regime_config(home, home.baseline, None, settings, use=use)
    count = next(m for m in range(2, trials + 2) if m * (m - 1) // 2 >= trials)
    with RunPool(store or cache_folder("reproduce"), observer, jobs, [measure]) as pool:

        def request(i: int, slot: int) -> RunRequest:
            return RunRequest(str(i), slot, seeded(base, home, slot).override(seed=slot + APART * i))

        pool.run(request(i, slot) for i in range(count) for slot in range(slots))
    pairs = list(combinations(range(count), 2))
    orders = [generator("null_trials", slot).permutation(len(pairs)) for slot in range(slots)]
    out: list[dict[str, Any]] = []
    for trial in range(trials):
        values: list[float] = []
        for slot in range(slots):
            draw = int(orders[slot][trial])
            a, b = (required_figure(pool.results[str(i)][slot], measure) for i in pairs[draw])
            values.append(a - b if (trial + slot) % 2 else b - a)
        p = statistics.difference_p(values), statistics.difference_p([-v for v in values])
        out.append({"per_seed": values, "p": min(p)})
    every = [v for t in out for v in t["per_seed"]]
    return {
        "regime": regime,
        "measure": measure,
        "runs": count * slots,
        "trials": out,
        "false": sum(t["p"] <= statistics.ALPHA for t in out),
        "false_at_look": sum(t["p"] <= statistics.level(slots) for t in out),
        "spread": statistics.mean_and_error(every)[1] * len(every) ** 0.5,
    }
