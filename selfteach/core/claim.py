"""What a paper says will happen, as checks that could come out otherwise: premises, mechanisms and outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .errors import BadValue

FIRST_SEED = 200  # of those that are reported; 0 to 99 are for tuning, and the first edition has seen 100 to 199
Kind: TypeAlias = Literal["premise", "mechanism", "outcome", "unsorted"]
# A method's name, with hyper-parameters, and with run settings of its own.
ArmSpec: TypeAlias = "str | tuple[str, Mapping[str, Any]] | tuple[str, Mapping[str, Any], Mapping[str, Any]]"

# Relations whose `by` is a margin: the difference may be as large as that, on both sides or on one.
MARGINS = ("~", ">=", "<=")

# Measures that lie in [0, 1], by how their names begin.
FRACTIONS = ("accuracy", "greedy", "sampled", "maj", "pass@", "stderr", "auc", "asymptote", "forecast@")


def is_fraction(measure: str) -> bool:
    """Whether a measure lies between 0 and 1 and is shown in per cent."""
    return measure.startswith(FRACTIONS)


@dataclass(frozen=True)
class Check:
    """One number that says whether a part of a claim is so: measure(left) - measure(right) against a margin.

    kind      premise: is the situation there that the paper is about; mechanism: does the idea do what it does
              directly; outcome: does that help. unsorted: of a claim that was made before these were told apart
    measure   a figure of a finished run (accuracy, pass@32, length, accuracy+search ...), read at its end; of its
              evaluations on the way (auc, auc:greedy, steps_to@0.8, asymptote, forecast@0.5); or of its steps: first:,
              early:, late:, mean:, sum:, spread: or jitter: and a logged number (late:reward/mean,
              sum:tokens/sampled, spread:tokens/learned)
    left      an arm; right: an arm, "start" (the same arm before training), a number, or "other measure of arm"
    by        the smallest effect of interest: above 0 for an outcome, at least 0 for a premise or mechanism
    relation  ">": the difference is above 0 and at least `by`; "<": the same below; "~": it is within `by`;
              ">=": the left is not worse, at most `by` below; "<=": at most `by` above
    scale     "abs" compares differences, "ratio" compares left / right - 1
    fails_at  a value of the right figure (of the left one, where the right side is a number) at which the check fails:
              a check that no figure could fail says nothing

    Raises BadValue for a margin that is too small, and for a `fails_at` at which the check could hold all the same.
    """

    kind: Kind
    measure: str
    left: str = "self"
    right: str | float = "start"
    by: float = 0.0
    relation: Literal[">", "<", "~", ">=", "<="] = ">"
    scale: Literal["abs", "ratio"] = "abs"
    fails_at: float | None = None

    def __post_init__(self) -> None:
        if self.kind == "outcome" and not self.by > 0:
            raise BadValue(f"check {self}: `by` is the smallest effect of interest and must be above 0, not {self.by}")
        if self.kind in ("premise", "mechanism") and not self.by >= 0:
            raise BadValue(f"check {self}: `by` must be at least 0, not {self.by}; turn the relation round")
        if self.relation in MARGINS and self.kind != "unsorted" and not self.by > 0:
            raise BadValue(f"check {self}: to be within 0 is never shown; give `by` above 0")
        if self.fails_at is not None and could_hold_at(self, self.fails_at):
            raise BadValue(
                f"check {self}: fails_at {self.fails_at:g} is no value at which it fails; give the"
                f" {'left' if _against_number(self) else 'right'} figure at which it could not hold"
            )

    @property
    def right_figure(self) -> tuple[str, str] | None:
        """(measure, arm) of the right side, where "start" is the left arm before training; None: it is a number."""
        return figure_of(self.measure, self.right) if isinstance(self.right, str) else None

    def __str__(self) -> str:
        rel = {">": "above", "<": "below", "~": "within", ">=": "not below", "<=": "not above"}[self.relation]
        by = f"{self.by:g}" + (" (as a share)" if self.scale == "ratio" else "")
        return f"{self.measure} of {self.left} {rel} that of {self.right} by {by}"


def figure_of(measure: str, right: str) -> tuple[str, str]:
    """(measure, arm) of a check's right side that is no number: an arm, whose measure is the left one's, or another's.

    >>> figure_of("accuracy", "grpo"), figure_of("accuracy", "maj@8 of start")
    (('accuracy', 'grpo'), ('maj@8', 'start'))
    """
    other, of, arm = right.partition(" of ")
    return (other, arm) if of else (measure, right)


def difference(check: Check, left: float, right: float) -> float:
    """left - right, or left / right - 1 where the check's scale is a ratio (NaN where right is 0)."""
    if check.scale == "abs":
        return left - right
    return left / right - 1 if right else math.nan


def is_satisfied(check: Check, left: float, right: float) -> bool:
    """Whether two figures, taken as exact, satisfy a check.

    >>> check = outcome("accuracy", "self", "grpo", by=0.05)
    >>> is_satisfied(check, 0.75, 0.5), is_satisfied(check, 0.52, 0.5)
    (True, False)
    """
    d = difference(check, left, right)
    if check.relation == "~":
        return abs(d) < check.by
    d = d if check.relation in (">", ">=") else -d
    if check.relation in MARGINS:
        return d > -check.by
    return d > 0 and d >= check.by


def could_hold_at(check: Check, figure: float) -> bool:
    """Whether a check could hold where its right figure (its left one, against a number) has this value.

    A fraction lies in [0, 1], so the best that the left side can be is known: accuracy cannot be 0.05 above 0.98. Of
    other measures no bound is known, and any value is taken for one at which the check could fail. "~", ">="
    and "<=" fail where some possible left figure is further off than the margin.

    >>> check = outcome("accuracy", "self", "grpo", by=0.05)
    >>> could_hold_at(check, 0.5), could_hold_at(check, 0.96)
    (True, False)
    """
    if not math.isfinite(figure):
        return True
    if _against_number(check):
        return is_satisfied(check, figure, float(check.right))
    if not is_fraction(check.measure):
        return False
    if check.relation == "~":
        return is_satisfied(check, 0.0, figure) and is_satisfied(check, 1.0, figure)
    return is_satisfied(check, 1.0 if check.relation in (">", "<=") else 0.0, figure)


def _against_number(check: Check) -> bool:
    return not isinstance(check.right, str)


def premise(measure: str, left: str = "self", right: str | float = "start", **options: Any) -> Check:
    """A check that the situation is there which the paper is about; where it does not hold, nothing is tested."""
    return Check("premise", measure, left, right, **options)


def mechanism(measure: str, left: str = "self", right: str | float = "start", **options: Any) -> Check:
    """A check that the idea does directly what it is for; where it does not, implementation or premise is wrong."""
    return Check("mechanism", measure, left, right, **options)


def outcome(measure: str, left: str = "self", right: str | float = "start", **options: Any) -> Check:
    """A check that this helps as the paper says."""
    return Check("outcome", measure, left, right, **options)


def unsorted(measure: str, left: str = "self", right: str | float = "start", **options: Any) -> Check:
    """A check of a claim without a regime, made before premise, mechanism and outcome were told apart."""
    return Check("unsorted", measure, left, right, **options)


@dataclass(frozen=True)
class Claim:
    """What the paper says will happen, small enough for two CPU cores.

    checks    premises, mechanisms and outcomes; each is reported
    arms      name -> a method's name, (name, hyper-parameters) or (name, hyper-parameters, run settings); "self" is
              the method itself
    regime    where it is measured: a name in `registry.regimes`, which says task, model, warm start and budget
    settings  of the runs of all arms, over the regime's; task.KEY: an option of the task (an arm's own settings too)
    args      hyper-parameters of "self", over the regime's
    idea      patterns of the rows by which arms may differ from "self" because that is the idea: rows of the method's
              table with stage and update named (main.credit, main.update.0.term.*), task.KEY, settings.NAME
    differs   pattern -> why the arms differ in that too
    equal     what every arm gets the same of: steps, tokens sampled, or seconds of training; those of "self"
    because   what the paper says, in a sentence
    first_seed  of the seeds that are reported
    corrected   what was wrong with the claim when it was reported before, on other seeds
    task, task_options, steps  of a claim without a regime, which has not been decided again

    Raises BadValue for a claim in a regime whose checks are not sorted or do not name a value at which they fail.
    """

    checks: tuple[Check, ...]
    arms: Mapping[str, ArmSpec] = field(default_factory=dict[str, ArmSpec])
    task: str = "chain_sum"
    task_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    steps: int = 40
    equal: Literal["steps", "tokens", "seconds"] = "steps"
    because: str = ""
    regime: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    idea: tuple[str, ...] = ()
    differs: Mapping[str, str] = field(default_factory=dict[str, str])
    first_seed: int = FIRST_SEED
    corrected: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.checks, Check):
            object.__setattr__(self, "checks", (self.checks,))
        if isinstance(self.idea, str):
            object.__setattr__(self, "idea", (self.idea,))
        for check in self.checks if self.regime else ():
            if check.kind == "unsorted":
                raise BadValue(f"check {check}: in a regime it is a premise, a mechanism or an outcome; say which")
            if check.fails_at is None:
                raise BadValue(
                    f"check {check}: needs fails_at, a value of the baseline's figure at which it would fail"
                )
        if self.regime and not any(c.kind == "outcome" for c in self.checks):
            raise BadValue(f"claim in regime {self.regime}: has no outcome check, so there is nothing to decide")


def arm_parts(arm: ArmSpec) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
    """An arm as (method, hyper-parameters, run settings).

    >>> arm_parts(("grpo", {"beta": 0.1}))
    ('grpo', {'beta': 0.1}, {})
    """
    if isinstance(arm, str):
        return arm, {}, {}
    return (arm[0], arm[1], {}) if len(arm) == 2 else arm
