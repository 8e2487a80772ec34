"""Verdicts: a claim's checks against the figures that were measured.

A check is a difference, measured once per seed: its two sides come from runs of the same seed, so what the seed does to
both cancels. The 95 % bootstrap interval of its mean over seeds (`bootstrap.interval`) is held against the margin:

    holds                the whole interval satisfies the relation
    does not hold here   the whole interval violates it
    undecided            it lies on both sides, there are fewer than three seeds, or a figure was not measured
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..core.method import Check, Claim
from .bootstrap import interval

HOLDS, FAILS, UNDECIDED = "holds", "does not hold here", "undecided"
MIN_SEEDS = 3  # fewer decide nothing

# The runs of one seed: arm -> "before", "after" or "logged" -> figure -> value.
Arms = Mapping[str, Mapping[str, Mapping[str, float | None]]]


class CheckResult(NamedTuple):
    """A check with its difference in each seed, their mean and interval, the verdict, and why where undecided."""

    check: Check
    per_seed: list[float | None]
    effect: float | None
    interval: tuple[float, float] | None
    verdict: str
    why: str = ""


def operand(check: Check, arms: Arms, left: bool) -> float:
    """The left or right figure of a check in one seed. Raises LookupError where it was not measured."""
    if left:
        return _figure(arms, check.left, "after", check.measure)
    right = check.right
    if not isinstance(right, str):
        return float(right)
    measure, of, arm = right.partition(" of ")
    if not of:
        measure, arm = check.measure, right
    return _figure(arms, check.left, "before", measure) if arm == "start" else _figure(arms, arm, "after", measure)


def _figure(arms: Arms, arm: str, when: str, measure: str) -> float:
    if arm not in arms:
        raise LookupError(f"there is no arm {arm}")
    run = arms[arm]
    value = run.get(when, {}).get(measure, run.get("logged", {}).get(measure) if when == "after" else None)
    if value is None or not math.isfinite(value):
        raise LookupError(f"{measure} of {arm}{' before training' if when == 'before' else ''} was not measured")
    return float(value)


def difference(check: Check, left: float, right: float) -> float:
    """The difference left - right, or left / right - 1 where the check's scale is a ratio (NaN where right is 0)."""
    if check.scale == "abs":
        return left - right
    return left / right - 1 if right else math.nan


def interval_verdict(check: Check, low: float, high: float) -> str:
    """The verdict on a check whose difference has the interval [low, high].

    >>> check = Check("accuracy", by=0.05)
    >>> interval_verdict(check, 0.06, 0.09), interval_verdict(check, 0.01, 0.05), interval_verdict(check, 0.04, 0.09)
    ('holds', 'does not hold here', 'undecided')
    """
    by = check.by
    if check.relation == ">":
        holds, fails = low > by, high <= by
    elif check.relation == "<":
        holds, fails = high < -by, low >= -by
    else:
        holds, fails = -by <= low and high <= by, low > by or high < -by
    return HOLDS if holds else FAILS if fails else UNDECIDED


def evaluate_check(check: Check, seeds: Sequence[Arms]) -> CheckResult:
    """A check evaluated on the runs of several seeds."""
    values: list[float | None] = []
    why = ""
    for arms in seeds:
        try:
            value = difference(check, operand(check, arms, True), operand(check, arms, False))
        except LookupError as error:
            value, why = None, str(error)
        if value is not None and math.isnan(value):
            value, why = None, "the right side is 0, and the check is of a ratio"
        values.append(value)
    known = [v for v in values if v is not None]
    mean = math.fsum(known) / len(known) if known else None
    span = interval(known) if len(known) > 1 else None
    if len(known) < len(values):
        return CheckResult(check, values, mean, span, UNDECIDED, why)
    if span is None or len(known) < MIN_SEEDS:
        return CheckResult(
            check,
            values,
            mean,
            span,
            UNDECIDED,
            f"{len(known)} seed{'s' if len(known) != 1 else ''}, and at least {MIN_SEEDS} are needed",
        )
    return CheckResult(check, values, mean, span, interval_verdict(check, *span))


def overall(verdicts: Sequence[str]) -> str:
    """The verdict on a claim: it holds where all its checks do, and does not hold where one does not."""
    return FAILS if FAILS in verdicts else HOLDS if verdicts and all(v == HOLDS for v in verdicts) else UNDECIDED


def describe(check: Check) -> str:
    """A check in words.

    >>> describe(Check("accuracy", "self", "grpo", by=0.03, relation="~"))
    'accuracy of self is within 0.03 of that of grpo'
    """
    right = check.right
    if right == "start":
        right = f"that of {check.left} before training" if check.left != "self" else "that before training"
    elif isinstance(right, str):
        right = right.replace(" of start", " before training") if " of " in right else f"that of {right}"
    else:
        right = f"{right:g}"
    by = f"{100 * check.by:g} %" if check.scale == "ratio" else f"{check.by:g}"
    head = f"{check.measure} of {check.left} is"
    if check.relation == "~":
        return f"{head} within {by} of {right}"
    if check.by < 0:  # "at most 5 % below" reads better than "above by -5 %"
        return f"{head} at most {by.lstrip('-')} {'below' if check.relation == '>' else 'above'} {right}"
    return f"{head} {'above' if check.relation == '>' else 'below'} {right}" + (f" by {by}" if check.by else "")


def claim_json(claim: Claim) -> dict[str, Any]:
    """A claim as plain values: its checks in words, its arms, its budget, and the paper's reason."""
    arms = {
        n: a if isinstance(a, str) else f"{a[0]}({', '.join(f'{k}={v!r}' for k, v in a[1].items())})"
        for n, a in claim.arms.items()
    }
    return {
        "checks": [describe(c) for c in claim.checks],
        "because": claim.because,
        "task": claim.task,
        "task_options": dict(claim.task_options),
        "steps": claim.steps,
        "equal": claim.equal,
        "arms": arms,
    }
