"""The section of one result: where it was measured, what was built, what is not equal."""

from __future__ import annotations

from selfteach.analysis.claim_section import as_built, formatted_place, formatted_verdict, unequal_updates


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
        return unequal_updates({"arms": {name: {"cost": {"optimiser_steps": n}} for name, n in taken.items()}})

    assert arms(self=100, more=114, fewer=88, none=None) == ""
    assert arms(self=100, more=116, fewer=86) == "optimiser steps, of which self took 100 and more 116, fewer 86"
    assert arms(self=None, other=60) == "" and arms(other=60) == ""


def test_an_accuracy_smaller_than_one_is_no_bound():
    check = {"verdict": "undecided", "why": "", "measure": "accuracy", "scale": "abs", "effect": 0.6, "interval": None}
    assert formatted_verdict({**check, "smaller_than": 1.15}) == "undecided"
    assert formatted_verdict({**check, "smaller_than": 0.25}) == "undecided (smaller than 25.0)"
    assert formatted_verdict({**check, "scale": "ratio", "smaller_than": 1.15}) == "undecided (smaller than 115.0 %)"
