"""Findings: sentences that stand on checks, and fall with them."""

from __future__ import annotations

from typing import Any

import pytest

from selfteach.analysis import claim_results, claim_section
from selfteach.analysis.findings import FINDINGS, Figure, Finding, findings_section

FINDING = Finding(
    "Fresh is best.",
    "Late is worse by {b} and later by {a}.",
    (Figure("late", "accuracy", "self", "fresh"), Figure("late", "auc", "self", "fresh", "does not hold here")),
)


def result(first: str, second: str) -> dict[str, Any]:
    sides = {"left": "self", "right": "fresh"}
    checks = [
        {"measure": "accuracy", **sides, "verdict": first, "effect": 0.25},
        {"measure": "auc", **sides, "verdict": second, "effect": 0.5},
    ]
    return {"method": "late", "checks": checks}


@pytest.mark.parametrize(
    ("verdicts", "found"),
    [
        (("holds", "does not hold here"), True),
        (("holds", "holds"), False),
        (("undecided", "does not hold here"), False),
    ],
)
def test_a_finding_is_printed_while_all_its_checks_came_out_so(verdicts: tuple[str, str], found: bool):
    text = findings_section([result(*verdicts)], lambda check: f"<{check['effect']}>", [FINDING])
    said = "**Fresh is best.** Late is worse by <0.5> and later by <0.25>. ([`late`](#late))"
    assert text == (f"\n## What was found\n\n- {said}\n" if found else "")
    assert findings_section([], str, [FINDING]) == "", "a claim that was not run says nothing"


def test_a_finding_says_where_a_claim_is_in_doubt_or_its_regime_not_admitted_and_five_come_first():
    made = {**result("holds", "does not hold here"), "regime": "stale"}
    text = findings_section([made], lambda check: "+1", [FINDING] * 6, doubted=["late"], unadmitted=["stale"])
    assert text.count("([`late`](#late); of `late` a doubt stands; `stale` is not admitted yet)") == 6
    assert text.index("And:") > text.index("- **") and text.partition("And:")[0].count("- **") == 5


def test_a_finding_may_stand_on_an_experiment_beside_a_claim():
    beside = {"late": {"later": result("holds", "does not hold here")}}
    known = claim_results.with_experiments([], beside)
    finding = FINDING._replace(figures=tuple(f._replace(method="late.later") for f in FINDING.figures))
    assert "([`late.later`](ledger/late.md#later))" in findings_section(known, str, [finding])
    assert not findings_section(known, str, [FINDING])


def test_the_findings_are_those_of_the_committed_results():
    results = [r for r in claim_results.read_results(claim_results.SHIPPED_RESULTS) if claim_results.is_decided(r)]
    known = claim_results.with_experiments(results, claim_results.experimented([claim_results.SHIPPED_RESULTS]))
    text = findings_section(known, claim_section.formatted_effect)
    fallen = [f.title for f in FINDINGS if f.title not in text]
    assert not fallen, "results have changed; mend what is said of them, or take it out"
