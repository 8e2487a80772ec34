"""Verdicts: a claim's checks against the figures that were measured.

A check is a difference, measured once per seed: its two sides come from runs of the same seed, so what the seed does to
both cancels. Seeds of one warm start count as one (`statistics.by_start`). The paired t interval of the mean over warm
starts (`statistics.interval`, at the level of the look) is held against the smallest effect of interest, `by`. For
"above" (and "below", turned round):

    holds                the interval lies above 0, and the mean is at least `by`
    does not hold here   the interval lies below `by` (at or below 0 where `by` is 0)
    undecided            neither; there are fewer than eight seeds; or a figure was not measured

"Within" holds where the (1 - 2 alpha) interval lies inside (-by, by), which is two one-sided tests at alpha, and does
not where it lies wholly outside. Outcome checks of one claim share their alpha by Holm's method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.claim import MARGINS, Check, Claim, arm_parts, difference
from ..core.regime import claim_home
from ..core.serial import plain
from . import statistics
from .figures import counted

HOLDS, FAILS, UNDECIDED = "holds", "does not hold here", "undecided"
NOT_TESTED, NOT_SHOWN, SHOWN = "not tested here", "mechanism not shown", "mechanism shown"
MIN_SEEDS = 8  # fewer decide nothing

# The runs of one seed: arm -> "before", "after" or "logged" -> figure -> value.
Arms = Mapping[str, Mapping[str, Mapping[str, float | None]]]


@dataclass(frozen=True)
class CheckResult:
    """A check with what was measured.

    per_seed    its difference in each seed; effect: the mean over warm starts of their means; interval: at 1 - alpha
                (of "within": 1 - 2 alpha)
    detectable  the effect that this many seeds would have found with a probability of 80 %
    p           of the check's null hypothesis; of outcomes after Holm's correction
    why         why it is undecided
    """

    check: Check
    per_seed: list[float | None]
    effect: float | None
    interval: tuple[float, float] | None
    detectable: float | None
    p: float | None
    verdict: str
    why: str = ""


def operand(check: Check, arms: Arms, left: bool) -> float:
    """The left or right figure of a check in one seed. Raises LookupError where it was not measured."""
    if left:
        return _figure(arms, check.left, "after", check.measure)
    if check.right_figure is None:
        return float(check.right)
    measure, arm = check.right_figure
    return _figure(arms, check.left, "before", measure) if arm == "start" else _figure(arms, arm, "after", measure)


def _figure(arms: Arms, arm: str, when: str, measure: str) -> float:
    if arm not in arms:
        raise LookupError(f"there is no arm {arm}")
    run = arms[arm]
    value = end_figure(run, measure) if when == "after" else run.get(when, {}).get(measure)
    if value is None or not math.isfinite(value):
        raise LookupError(f"{measure} of {arm}{' before training' if when == 'before' else ''} was not measured")
    return float(value)


def end_figure(run: Mapping[str, Any], measure: str) -> float | None:
    """A figure of a finished run, of its end (accuracy, pass@32) or of its steps (late:reward/mean); None: unknown."""
    return run.get("after", {}).get(measure, run.get("logged", {}).get(measure))


def interval_verdict(check: Check, mean: float, low: float, high: float, rejected: bool = True) -> str:
    """The verdict on a check whose difference has this mean and interval.

    rejected  whether its null hypothesis is rejected after the correction for several checks

    >>> check = Check("outcome", "accuracy", by=0.05)
    >>> [interval_verdict(check, *x) for x in ((0.07, 0.02, 0.12), (0.02, 0.0, 0.04), (0.04, 0.01, 0.07))]
    ['holds', 'does not hold here', 'undecided']
    """
    by = check.by
    if check.relation.startswith("<"):
        mean, low, high = -mean, -high, -low
    if check.relation == "~":
        holds, fails = -by < low and high < by, low >= by or high <= -by
    elif check.relation in MARGINS:
        holds, fails = -by < low, high <= -by
    else:
        holds, fails = low > 0 and mean >= by, high < by or (by <= 0 and high <= 0)
    return HOLDS if holds and rejected else FAILS if fails else UNDECIDED


def evaluate_check(check: Check, seeds: Sequence[Arms], starts: Sequence[int] = ()) -> CheckResult:
    """A check evaluated on the runs of several seeds, by itself (without a correction for others).

    starts: the warm start of each seed; none: each has its own, or all have one that nobody drew.
    """
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
    alpha = statistics.level(len(known))
    of_known = [s for s, v in zip(starts, values, strict=True) if v is not None] if starts else ()
    means = statistics.by_start(known, of_known)
    mean = statistics.mean_and_error(means)[0] if means else None
    if mean is None or len(means) < 2:
        return CheckResult(check, values, mean, None, None, None, UNDECIDED, why or _too_few(known))
    span = statistics.interval(means, 2 * alpha if check.relation in MARGINS else alpha)
    found = CheckResult(
        check, values, mean, span, statistics.detectable(means, alpha), null_p(check, means), UNDECIDED, why
    )
    if len(known) < len(values):
        return found
    if len(known) < MIN_SEEDS:
        return replace(found, why=_too_few(known))
    return _decided(found, found.p or 0.0, alpha)


def null_p(check: Check, values: Sequence[float]) -> float:
    """The p-value of a check's null hypothesis: no difference in its direction, or one beyond the margin."""
    if check.relation == "~":
        return statistics.equivalence_p(values, check.by)
    turned = values if check.relation.startswith(">") else [-v for v in values]
    return statistics.one_sided_p(turned, -check.by) if check.relation in MARGINS else statistics.difference_p(turned)


def _too_few(known: Sequence[float]) -> str:
    return f"{counted(len(known), 'seed')}, and at least {MIN_SEEDS} are needed"


def _decided(found: CheckResult, p: float, alpha: float) -> CheckResult:
    """A check with its verdict at the p-value p."""
    assert found.effect is not None and found.interval is not None
    verdict = interval_verdict(found.check, found.effect, *found.interval, rejected=p <= alpha)
    return replace(found, p=p, verdict=verdict)


def largest_effect(check: Check, interval: Sequence[float]) -> float:
    """The far end of an interval, in the direction of the check or of its margin: an open effect is smaller."""
    low, high = interval
    ends = {">": high, "<": -low, "~": max(abs(low), abs(high)), ">=": -low, "<=": high}
    return ends[check.relation]


def evaluate_claim(checks: Sequence[Check], seeds: Sequence[Arms], starts: Sequence[int] = ()) -> list[CheckResult]:
    """Every check evaluated on the runs of several seeds, the outcomes with Holm's correction for their number."""
    found = [evaluate_check(c, seeds, starts) for c in checks]
    outcomes = [i for i, c in enumerate(checks) if c.kind == "outcome"]
    adjusted = statistics.holm([math.nan if (p := found[i].p) is None else p for i in outcomes])
    for i, p in zip(outcomes, adjusted, strict=True):
        known = [v for v in found[i].per_seed if v is not None]
        if len(known) == len(found[i].per_seed) >= MIN_SEEDS and found[i].interval is not None:
            found[i] = _decided(found[i], p, statistics.level(len(known)))
    return found


def overall(results: Sequence[CheckResult]) -> str:
    """The verdict on a claim from those on its checks.

    A premise that does not hold (or is open): not tested here. A mechanism that fails or is open: mechanism not shown.
    Else it holds where all outcomes do, and does not hold here where one does not; where that is open it is
    `mechanism shown`, or `undecided` for a claim without a mechanism check.
    """
    verdicts = {
        k: [r.verdict for r in results if r.check.kind == k] for k in ("premise", "mechanism", "outcome", "unsorted")
    }
    if any(v != HOLDS for v in verdicts["premise"]):
        return NOT_TESTED
    if any(v != HOLDS for v in verdicts["mechanism"]):
        return NOT_SHOWN
    outcomes = verdicts["outcome"] + verdicts["unsorted"]
    if FAILS in outcomes:
        return FAILS
    if outcomes and all(v == HOLDS for v in outcomes):
        return HOLDS
    return SHOWN if verdicts["mechanism"] else UNDECIDED


def describe(check: Check) -> str:
    """A check in words.

    >>> describe(Check("outcome", "accuracy", "self", "grpo", by=0.03, relation="~"))
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
    if check.relation in MARGINS:
        return f"{head} at most {by} {'below' if check.relation == '>=' else 'above'} {right}"
    if check.by < 0:  # "at most 5 % below" reads better than "above by -5 %"
        return f"{head} at most {by.lstrip('-')} {'below' if check.relation == '>' else 'above'} {right}"
    return f"{head} {'above' if check.relation == '>' else 'below'} {right}" + (f" by {by}" if check.by else "")


def claim_json(claim: Claim) -> dict[str, Any]:
    """A claim as plain values: its checks in words, its arms, where it is measured, and the paper's reason."""
    task, steps = claim_home(claim)
    arms = {n: arm_text(a) for n, a in claim.arms.items()}
    return {
        "checks": [describe(c) for c in claim.checks],
        "kinds": [c.kind for c in claim.checks],
        "because": claim.because,
        "regime": claim.regime,
        "task": task,
        "task_options": dict(claim.task_options),
        "steps": steps,
        "equal": claim.equal,
        "arms": arms,
        "differs": dict(claim.differs),
        **({"corrected": claim.corrected} if claim.corrected else {}),
    }


def is_stored(claim: Claim | None, stored: Any) -> bool:
    """Whether what a result has stored of its claim (`claim_json`) is this claim; False without one."""
    return claim is not None and stored == plain(claim_json(claim))


def arm_text(arm: Any) -> str:
    """An arm in words.

    >>> arm_text(("grpo", {"beta": 0.1}, {"lr": 0.001}))
    'grpo(beta=0.1) with lr=0.001'
    """
    method, args, settings = arm_parts(arm)
    call = f"({', '.join(f'{k}={v!r}' for k, v in args.items())})" if args else ""
    return method + call + (f" with {', '.join(f'{k}={v!r}' for k, v in settings.items())}" if settings else "")
