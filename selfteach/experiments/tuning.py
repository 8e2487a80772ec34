"""The arms of a claim tuned alike: the same values of the same settings, on tuning seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ..analysis import statistics
from ..analysis.claim_results import tuned_claim
from ..configuration import RunConfig
from ..core import registry
from ..core.cache import cache_folder
from ..core.claim import ArmSpec
from ..core.errors import BadValue, unknown
from ..core.method import MethodEntry
from ..core.regime import Regime
from ..core.serial import write_json
from ..loop.session import Observer, ignore_events
from ..loop.settings import SETTING_NAMES
from .admission import SEARCH_SEEDS, TUNING_SEEDS, search_figures
from .arms import arm_config, claim_arms, seeded, stated_value
from .reproduce import versions
from .runs import RunPool, RunRequest, available_cores

Values = dict[str, Any]  # name of a setting or hyper-parameter -> its value


def tune(
    name: str,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int = SEARCH_SEEDS,
    first_seed: int = 0,
    arms: Sequence[str] = (),
    jobs: int | None = 1,
    out: str | Path | None = "results/tuning",
    observer: Observer = ignore_events,
    store: Path | None = None,
    use: Sequence[str] = (),
) -> dict[str, Any]:
    """Run every arm of a method's claim with every combination of some values; writes OUT/NAME.json and returns it.

    grid   setting or hyper-parameter -> values; None: what the claim's regime searched, and what an arm states where
           that is none of these. An arm whose method does not have a hyper-parameter goes without it
    seeds  of the tuning seeds, so many from `first_seed` on
    arms   the names of those to run, of which the method is "self"; (): all of the claim
    jobs, store, use  as `reproduce` takes them

    The figure of a combination is the mean of greedy and sampled accuracy after training, over seeds; a run that fails
    is noted and its combination has none. Nothing is changed: what was found is to be stated in the claim.

    Raises BadValue, before any run, for a method without a claim in a regime, a grid without values or of what neither
    the run nor any arm has, and seeds that are not for tuning; UnknownName for an arm that the claim does not have.
    """
    entry: MethodEntry[...] = registry.methods.get(name)
    stated = claim_arms(entry, use=use)
    claim = entry.claim
    if claim is None or not claim.regime:
        raise BadValue(f"method {name}: its claim names no regime, so there is nothing to tune it in")
    home: Regime = registry.regimes.get(claim.regime)
    asked, grid = grid is not None, dict(home.search if grid is None else grid)
    numbers = range(first_seed, first_seed + seeds)
    if not numbers or numbers[0] not in TUNING_SEEDS or numbers[-1] not in TUNING_SEEDS:
        raise BadValue(
            f"method {name}: {seeds} seeds from {first_seed} on are not of the tuning seeds, {TUNING_SEEDS.start} to"
            f" {TUNING_SEEDS.stop - 1}"
        )
    specs: dict[str, ArmSpec] = {"self": (name, claim.args), **claim.arms}
    for other in (arm for arm in arms if arm not in specs):
        raise unknown(f"arm of {name}'s claim", other, specs)
    specs = {arm: spec for arm, spec in specs.items() if not arms or arm in arms}
    tried = {arm: _combinations(entry, arm, spec, stated[arm].run_config, grid, use) for arm, spec in specs.items()}
    if not asked:
        for arm, rows in tried.items():
            _with_stated(rows, stated[arm].run_config)
    if not grid or not all(grid.values()):
        raise BadValue(f"method {name}: nothing to tune; give a grid, such as lr=1e-4,3e-4")
    if missing := [n for n in grid if not any(n in values for rows in tried.values() for values, _ in rows)]:
        raise BadValue(f"method {name}: no arm has {missing[0]}, and the run has no such setting")
    cores = available_cores() if jobs is None else max(1, jobs)
    labels = {(arm, i): f"{arm} {_text(rows[i][0])}" for arm, rows in tried.items() for i in range(len(rows))}
    statistics.require_scipy()
    with RunPool(store or cache_folder("reproduce"), observer, cores, tolerant=True) as pool:
        pool.run(
            RunRequest(label, s, seeded(tried[arm][i][1], home, s))
            for (arm, i), label in labels.items()
            for s in numbers
        )
        found = {
            arm: [
                {
                    "values": values,
                    "stated": config == stated[arm].run_config,
                    **search_figures(pool, labels[arm, i], numbers),
                }
                for i, (values, config) in enumerate(rows)
            ]
            for arm, rows in tried.items()
        }
    result = {
        "method": name,
        "regime": claim.regime,
        "claim": tuned_claim(claim, found),
        "grid": grid,
        "seeds": list(numbers),
        "arms": found,
        "versions": versions(),
    }
    if out is not None:
        write_json(Path(out) / f"{name}.json", result)
    return result


def _combinations(
    entry: MethodEntry[...],
    arm: str,
    spec: ArmSpec,
    stated: RunConfig,
    grid: Mapping[str, Sequence[Any]],
    use: Sequence[str],
) -> list[tuple[Values, RunConfig]]:
    """Every combination of the values that an arm has, with its configuration."""
    known = registry.methods.get(stated.method.name).hyper_parameters
    names = [n for n in grid if n in SETTING_NAMES or n in known]
    out: list[tuple[Values, RunConfig]] = []
    for combination in product(*(grid[n] for n in names)):
        values = dict(zip(names, combination, strict=True))
        args = {n: v for n, v in values.items() if n in known}
        settings = {n: v for n, v in values.items() if n not in known}
        if all(v == stated_value(stated, n) for n, v in values.items()):
            out.append((values, stated))  # whose runs may be there already
            continue
        made = arm_config(entry, arm, spec, args=args, settings=settings, use=use)
        out.append((values, made.override(eval_every=0, final_eval_k=0)))  # only its end is read
    return out


def _with_stated(rows: list[tuple[Values, RunConfig]], stated: RunConfig) -> None:
    """Put an arm as its claim states it before the others, where it is none of them."""
    if rows and all(config != stated for _, config in rows):
        rows.insert(0, ({n: stated_value(stated, n) for n in rows[0][0]}, stated))


def _text(values: Values) -> str:
    return " ".join(f"{n}={v:g}" if isinstance(v, float) else f"{n}={v}" for n, v in values.items())
