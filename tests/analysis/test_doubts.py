"""Doubts of verdicts: each is of a claim that there is, and the ledger lists it."""

from __future__ import annotations

from typing import Any

from selfteach.analysis import claim_results
from selfteach.analysis.doubts import BY_CONSTRUCTION, DOUBTS, ON_PURPOSE, at_a_ceiling, doubts_section
from selfteach.analysis.regime_evidence import gain_of_best, is_better
from selfteach.core import registry


def test_every_doubt_is_of_a_claim_and_stands_in_the_committed_ledger():
    registry.load_all()
    assert not [name for name in DOUBTS if name not in registry.methods or not registry.methods.get(name).claim]
    results = claim_results.read_results(claim_results.SHIPPED_RESULTS)
    text = doubts_section(results)
    doubted, _, rest = text.partition("Some mechanisms are")
    built, _, near = rest.partition("These outcomes ask for more than was left")
    assert all(f"[`{name}`](#{name})" in built for name in BY_CONSTRUCTION)
    assert doubted.count("\n| [`") == len(DOUBTS) and "| [`dapo`](#dapo) |" in near
    assert all(f"| [`{name}`](#{name}) | " in text and f" | {why} |" in text for name, why in DOUBTS.items())


def test_what_is_no_best_value_on_purpose_was_tuned_and_has_a_better_one():
    tuned = claim_results.read_tuning(claim_results.result_folders())
    assert all(is_better(gain_of_best(tuned[name]["arms"]["self"])) for name in ON_PURPOSE)


def test_where_nothing_is_in_doubt_nothing_is_said():
    assert doubts_section([{"method": "rloo", "verdict": "holds"}]) == ""


def test_an_outcome_that_fails_and_asks_for_more_than_is_left_is_at_a_ceiling():
    def of(value: float, **change: Any) -> dict[str, Any]:
        check = {
            "kind": "outcome",
            "verdict": "does not hold here",
            "relation": ">",
            "scale": "abs",
            "measure": "accuracy",
            "right": "other",
            "by": 0.03,
            "text": "it is above",
        }
        run = {"after": {"accuracy": value, "length": value}, "logged": {"auc": value}}
        return {"checks": [{**check, **change}], "arms": {"other": {"seeds": {"200": run}}}}

    assert at_a_ceiling(of(0.95)) == [["it is above", "95.0 %"]]
    assert at_a_ceiling(of(0.95, measure="auc")) and at_a_ceiling(of(0.95, right="auc of other"))
    assert not at_a_ceiling(of(0.93)), "0.96 is below what a few hopeless questions leave"
    for change in (
        {"verdict": "holds"},
        {"kind": "mechanism"},
        {"relation": ">="},
        {"measure": "length"},
        {"right": 0.95},
        {"right": "start"},
    ):
        assert not at_a_ceiling(of(0.95, **change)), change
