"""Doubts of verdicts: each is of a claim that there is, and the ledger lists it."""

from __future__ import annotations

from selfteach.analysis import claim_results
from selfteach.analysis.doubts import DOUBTS, doubts_section
from selfteach.core import registry


def test_every_doubt_is_of_a_claim_and_stands_in_the_committed_ledger():
    registry.load_all()
    assert not [name for name in DOUBTS if name not in registry.methods or not registry.methods.get(name).claim]
    results = claim_results.read_results(claim_results.SHIPPED_RESULTS)
    text = doubts_section(results)
    assert text.count("\n| [`") == len(DOUBTS)
    assert all(f"| [`{name}`](#{name}) | " in text and f" | {why} |" in text for name, why in DOUBTS.items())


def test_where_nothing_is_in_doubt_nothing_is_said():
    assert doubts_section([{"method": "grpo", "verdict": "holds"}]) == ""
