"""The arms of an experiment: configurations of runs that are to differ in one idea, and what they differ in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from ..analysis.figures import parse
from ..analysis.learning_curve import OF_CURVES
from ..configuration import RunConfig, plan
from ..core import registry
from ..core.claim import ArmSpec, Check, Claim, arm_parts
from ..core.errors import BadValue
from ..core.method import MethodEntry
from ..core.regime import Regime
from ..loop.settings import SETTING_GROUPS, SETTING_NAMES

# Settings of every run in a regime, unless the regime says otherwise.
REGIME_DEFAULTS: Mapping[str, Any] = {
    "threads": 1,
    "eval_every": 0,
    "final_eval_tasks": 400,
    "final_eval_decoder_samples": 8,
    "final_eval_k": 0,
    "max_idle_steps": 1_000_000,  # that a method finds nothing to learn from is a result, and no fault of a user's
}
TASK_OPTION = "task."  # so begin the options of the task among the settings of a claim or an arm
EVALUATIONS = 5  # at least as many on the way, where a check is about the curve


@dataclass(frozen=True)
class Arm:
    """One side of an experiment: its name in tables, and the configuration of its runs."""

    name: str
    run_config: RunConfig

    def seeded(self, seed: int, **change: Any) -> RunConfig:
        """The configuration of the run with this seed, with other settings where given."""
        settings: dict[str, Any] = {"seed": seed, **change}
        return self.run_config.override(**settings)


def regime_config(
    regime: str | Regime,
    method: str | MethodEntry[...],
    args: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> RunConfig:
    """The configuration of a method's run in a regime.

    Of the regime's hyper-parameters the method gets those that it has, and `args` over them; its settings come from
    REGIME_DEFAULTS, the regime, and `settings`, each over those before. Where the regime has a reward of its own, that
    stands for exact_match in a method that has it. more: model and use, as `configuration.plan` takes them.
    """
    home: Regime = registry.regimes.get(regime) if isinstance(regime, str) else regime
    entry: MethodEntry[...] = registry.methods.get(method) if isinstance(method, str) else method
    known = entry.hyper_parameters
    own = {k: v for k, v in home.args.items() if k in known}
    more["model"] = more.get("model") or home.model
    made = plan(
        entry,
        home.task,
        home.task_options,
        args={**own, **(args or {})},
        settings={**REGIME_DEFAULTS, **home.settings, **(settings or {})},
        **more,
    )
    if home.reward is None:
        return made
    return replace(made, method=made.method.with_reward(home.reward, required=False))


def claim_arms(entry: MethodEntry[...], settings: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Arm]:
    """The arms of a method's claim, "self" first, each as the claim's regime (or its task and steps) says.

    settings  of the runs, in place of the claim's
    more      model and use, as `configuration.plan` takes them

    Raises BadValue where the method makes no claim, where a check names an arm that is not there, and where a check is
    about a curve of fewer than five evaluations.
    """
    claim = entry.claim
    if claim is None:
        raise BadValue(
            f"method {entry.name}: makes no claim (a baseline or a variant), so there is nothing to reproduce; see"
            " selfteach methods"
        )
    specs: dict[str, ArmSpec] = {"self": (entry.name, claim.args), **claim.arms}
    out = {name: Arm(name, arm_config(entry, name, spec, settings=settings, **more)) for name, spec in specs.items()}
    for check in claim.checks:
        _check_arm_names(entry.name, check, out)
    if claim.regime:
        _check_curves(entry.name, claim, out)
    return out


def arm_config(
    entry: MethodEntry[...],
    name: str,
    spec: ArmSpec,
    *,
    args: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> RunConfig:
    """The configuration of one arm of a method's claim, with `args` and `settings` in place of the arm's own.

    Among the settings of a claim, or of an arm, `task.KEY` is an option of the task, over the regime's.
    """
    claim = entry.claim
    assert claim is not None
    method, own_args, own_settings = arm_parts(spec)
    common: dict[str, Any] = {"final_eval_k": samples_per_task(measures_of(claim))}
    if not claim.regime:
        common |= {"steps": claim.steps, "eval_every": 0, "threads": 1}
    given, options = _settings_and_options({**common, **claim.settings, **own_settings, **(settings or {})})
    of = entry if name == "self" else registry.methods.get(method)
    own_args = {**own_args, **(args or {})}
    if claim.regime:
        home: Regime = registry.regimes.get(claim.regime)
        home = replace(home, task_options={**home.task_options, **options})
        made = regime_config(home, of, own_args, given, **more)
    else:
        made = plan(of, claim.task, {**claim.task_options, **options}, args=own_args, settings=given, **more)
    return with_decoders(made, decoders_read(measures_of(claim)))


def _settings_and_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings of runs, options of the task) of what a claim and an arm set.

    >>> _settings_and_options({"steps": 20, "task.held_out": 0.3})
    ({'steps': 20}, {'held_out': 0.3})
    """
    options = {k.removeprefix(TASK_OPTION): v for k, v in given.items() if k.startswith(TASK_OPTION)}
    return {k: v for k, v in given.items() if not k.startswith(TASK_OPTION)}, options


def with_decoders(run_config: RunConfig, names: Collection[str]) -> RunConfig:
    """A configuration with these of its method's decoders alone: to evaluate with each takes as long as without any.

    What the policy itself is evaluated by (`Method.own_decoder`) is kept, whether it is named or not.
    """
    method = run_config.method
    kept = {name: program for name, program in method.decode.items() if name in {*names, method.own_decoder()}}
    return replace(run_config, method=replace(method, decode=kept))


def seeded(run_config: RunConfig, home: Regime, seed: int) -> RunConfig:
    """A configuration as a regime's seed has it."""
    settings: dict[str, Any] = {**home.seeded(seed)}
    return run_config.override(**settings)


def stated_value(run_config: RunConfig, name: str) -> Any:
    """The value of a hyper-parameter of a configuration's method or, where it has none of that name, of a setting."""
    known = registry.methods.get(run_config.method.name).hyper_parameters
    if name in known:
        return run_config.method.args.get(name, known[name].default)
    group = SETTING_NAMES[name]
    return getattr(getattr(run_config, group), name.removeprefix(SETTING_GROUPS[group][0]))


def _check_arm_names(method: str, check: Check, arms: Mapping[str, Arm]) -> None:
    for name in (check.left, check.right_figure[1] if check.right_figure else "start"):
        if name != "start" and name not in arms:
            raise BadValue(f"method {method}: its claim names an arm {name!r}, and has only {', '.join(arms)}")


def _check_curves(method: str, claim: Claim, arms: Mapping[str, Arm]) -> None:
    measures = sorted(m for m in measures_of(claim) if m.startswith(OF_CURVES))
    for arm in arms.values() if measures else ():
        s = arm.run_config.settings
        number = (s.steps - 1) // s.eval_every if s.eval_every else 0
        if number < EVALUATIONS or not (s.eval_samples or all(m.endswith(":greedy") for m in measures)):
            raise BadValue(
                f"method {method}: its claim reads {measures[0]}, which needs at least {EVALUATIONS} evaluations on the"
                f" way, with samples; {arm.name} has {number} with {s.eval_samples} samples: set eval_every and"
                " eval_samples"
            )


def measures_of(checks: Claim | Iterable[Check]) -> set[str]:
    """The names of figures that some checks, or those of a claim, read."""
    checks = checks.checks if isinstance(checks, Claim) else checks
    return {name for c in checks for name in figures_read(c.measure, c.right)}


def figures_read(measure: str, right: str | float) -> tuple[str, str]:
    """What a check reads: its measure, and what stands on its right before "of" (or an arm's name, or a number)."""
    return measure, str(right).partition(" of ")[0]


def figures_of(claim: Claim, arm: str) -> set[str]:
    """The names of figures that a claim's checks read of an arm, before training or after."""
    out = set[str]()
    for check in claim.checks:
        if arm == check.left:
            out.add(check.measure)
        if check.right_figure is not None:
            measure, other = check.right_figure
            if arm == (check.left if other == "start" else other):
                out.add(measure)
    return out


def decoders_read(words: Collection[str]) -> set[str]:
    """The decoders that some measures are about.

    >>> sorted(decoders_read(["accuracy", "calls+search", "accuracy/hops=2+vote"]))
    ['search', 'vote']
    """
    return {decoder for word in words if (decoder := parse(word).decoder)}


def samples_per_task(words: Collection[str]) -> int:
    """How many samples of each task some measures need (`final_eval_k`): 64, the largest k above, or 0.

    0 where none of them is pass@k, a majority or distinct answers. Few different values, so that claims share runs.
    """
    asked = [int(w.partition("@")[2].partition("+")[0].partition("/")[0]) for w in words if w.startswith("pass@")]
    return max([64, *asked]) if asked or any(w.startswith(("maj", "distinct")) for w in words) else 0


# ---- what arms differ in


@dataclass(frozen=True)
class ArmDifference:
    """A row in which an arm differs from "self".

    row   of the method's table (main.credit.0, main.update.0.term.1, main.groups), or task, task.KEY, model,
          settings.NAME
    kind  idea: by what the claim calls its idea; explained: for a reason that it gives; unexplained
    """

    row: str
    own: str | None
    other: str | None
    kind: Literal["idea", "explained", "unexplained"]
    because: str = ""


def config_rows(run_config: RunConfig) -> dict[str, str]:
    """A configuration as rows of text: the method's table with every stage and update named, task, model, settings."""
    rows = dict(run_config.method.table(full=True)) | {"task": run_config.task, "model": run_config.model}
    rows |= {f"{TASK_OPTION}{k}": str(v) for k, v in run_config.task_options.items()}
    for group, (prefix, _) in SETTING_GROUPS.items():
        rows |= {f"settings.{prefix}{k}": str(v) for k, v in asdict(getattr(run_config, group)).items()}
    return rows


def arm_differences(claim: Claim, arms: Mapping[str, Arm]) -> dict[str, list[ArmDifference]]:
    """Per arm the rows in which it differs from "self", by idea, explained or not.

    A pattern of the claim (`idea`, `differs`) fits a row that it matches, and all rows below one: "main.credit" fits
    main.credit.0.
    """
    own = config_rows(arms["self"].run_config)
    out: dict[str, list[ArmDifference]] = {}
    for name, arm in arms.items():
        if name == "self":
            continue
        other = config_rows(arm.run_config)
        rows = [r for r in {**own, **other} if own.get(r) != other.get(r)]
        out[name] = [_difference(claim, r, own.get(r), other.get(r)) for r in rows]
    return out


def _fits(row: str, pattern: str) -> bool:
    return fnmatchcase(row, pattern) or fnmatchcase(row, pattern + ".*")


def _difference(claim: Claim, row: str, own: str | None, other: str | None) -> ArmDifference:
    if any(_fits(row, p) for p in claim.idea):
        return ArmDifference(row, own, other, "idea")
    for pattern, because in claim.differs.items():
        if _fits(row, pattern):
            return ArmDifference(row, own, other, "explained", because)
    return ArmDifference(row, own, other, "unexplained")


def reasons_without_a_difference(claim: Claim, differences: Mapping[str, list[ArmDifference]]) -> list[str]:
    """The patterns of `idea` and `differs` that fit no row in which an arm differs: names that are no longer, say."""
    rows = {d.row for found in differences.values() for d in found}
    return [p for p in (*claim.idea, *claim.differs) if not any(_fits(r, p) for r in rows)]


def refuse_unexplained(method: str, differences: Mapping[str, list[ArmDifference]]) -> None:
    """Raise BadValue for the first row in which an arm differs without a reason."""
    for arm, rows in differences.items():
        for d in rows:
            if d.kind == "unexplained":
                raise BadValue(
                    f"method {method}: arm {arm} differs from self in {d.row} ({d.other}, self: {d.own}), and the claim"
                    " does not say why; make them equal, or add the row to `idea`, or to `differs` with the reason"
                )
