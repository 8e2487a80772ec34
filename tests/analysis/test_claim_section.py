"""The section of one result: where it was measured, what was built, what is not equal."""

from __future__ import annotations

from selfteach.analysis.claim_section import (
    as_built,
    formatted_place,
    formatted_settings,
    formatted_verdict,
    unequal_costs,
)
from selfteach.analysis.measured_before import EARLIER, measured_before, second_measurements
from selfteach.analysis.verdict import claim_json
from selfteach.core import registry
from selfteach.core.serial import plain


def test_a_place_says_where_several_seeds_had_one_warm_start():
    made = {"regime": "steep", "steps": 1, "seeds": [*range(200, 224)]}
    assert formatted_place({**made, "starts": [*range(8)] * 3}) == "`steep`, 1 step, 24 seeds of 8 warm starts"
    assert formatted_place({**made, "starts": [*range(24)]}, "here") == "here, 1 step, 24 seeds"
    assert formatted_place({**made, "starts": []}) == "`steep`, 1 step, 24 seeds", "a model that nobody warmed"


def test_what_was_built_is_the_prose_of_a_docstring_without_its_summary_and_equations():
    text = as_built("dapo")
    assert text.startswith("Yu et al. 2025, equations 8 to 13. Answers longer than limit - cache are punished")
    assert "loss = -mean" not in text and "GRPO with clip-higher" not in text and "\n" not in text
    assert as_built("nothing of the kind") == ""


def test_updates_are_unequal_from_a_seventh_on():
    def arms(**taken: int | None) -> str:
        return unequal_costs({"arms": {name: {"cost": {"optimiser_steps": n}} for name, n in taken.items()}})

    assert arms(self=100, more=114, fewer=88, none=None) == ""
    assert arms(self=100, more=116, fewer=86) == "optimiser steps, of which self took 100 and more 116, fewer 86"
    assert arms(self=None, other=60) == "" and arms(other=60) == ""


def test_sampled_tokens_are_unequal_from_a_half_on():
    of = {"self": (60, 100), "alike": (60, 149), "more": (90, 151), "none": (60, 0)}
    arms = {name: {"cost": {"optimiser_steps": n, "tokens": t}} for name, (n, t) in of.items()}
    assert unequal_costs({"arms": arms}) == (
        "optimiser steps, of which self took 60 and more 90; sampled tokens, of which self took 100 and more 151"
    )


def test_a_claim_that_was_measured_twice_under_the_same_seeds_says_what_it_had_come_to():
    registry.load_all()
    assert not [name for name in EARLIER if name not in registry.methods]
    made = {"method": "sar", "seeds": [500, 501], "verdict": "holds"}
    said = "Measured twice from seed 500 on: 12 seeds of 8 warm starts had come to not tested here."
    assert measured_before(made) == said
    assert measured_before({**made, "seeds": [600]}) == "" and measured_before({**made, "experiment": "x"}) == ""
    other = {"method": "sec", "seeds": [300], "verdict": EARLIER["sec"].verdict}
    once = {"method": "grpo", "seeds": [200], "verdict": "holds"}
    assert second_measurements([made, other, once]).startswith("2 of the claims had been left open")
    assert "of 1 the verdict is another now" in second_measurements([made, other, once])
    assert second_measurements([once]) == ""


def test_an_accuracy_smaller_than_one_is_no_bound():
    check = {"verdict": "undecided", "why": "", "measure": "accuracy", "scale": "abs", "effect": 0.6, "interval": None}
    assert formatted_verdict({**check, "smaller_than": 1.15}) == "undecided"
    assert formatted_verdict({**check, "smaller_than": 0.25}) == "undecided (smaller than 25.0)"
    assert formatted_verdict({**check, "scale": "ratio", "smaller_than": 1.15}) == "undecided (smaller than 115.0 %)"


def test_settings_that_are_not_the_regimes_are_told_of_the_claim_that_was_measured():
    registry.load_all()
    claim = registry.methods.get("qerl").claim
    assert claim is not None
    made = {"method": "qerl", "claim": plain(claim_json(claim))}
    assert formatted_settings(made) == "lora_rank=16, lr=0.0008"
    assert formatted_settings({**made, "claim": {**made["claim"], "because": "of something else"}}) == ""
    assert formatted_settings({"method": "nothing of the kind", "claim": made["claim"]}) == ""
