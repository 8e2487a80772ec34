"""RLVRR by hand: key phrases in the reference's order, and checks of style."""

from __future__ import annotations

import pytest

from selfteach.core import Task
from selfteach.methods.rlvrr import bag_overlap, found, ordered_overlap, reference_chain
from selfteach.tasks.report import Reports, Request

TASK = Reports.to_task(
    Request("anna", (("home", "oslo"), ("pet", "cat"), ("colour", "red"), ("drink", "tea")), ("greet",)), "t"
)
REFERENCE = "dear reader . anna lives in oslo . anna keeps a cat . anna likes red . anna drinks tea ."


def content(text: str, **how: object) -> float:
    return reference_chain(answer=text, task=TASK, **how).parts["content"]


def test_the_reference_has_all_and_other_words_for_it_too():
    assert TASK.tags["reference"] == REFERENCE
    full = reference_chain(answer=REFERENCE, task=TASK)
    assert full.value == pytest.approx(2.0) and full.parts == pytest.approx(
        {"content": 1.0, "style": 1.0, "repeated": 0.0, "right": 1.0}
    )
    # of two lists of a key point, phrases and values, the better one counts: in other words the values do
    # (1/2 + 1 and, for its name, 1) / 3
    assert content("anna owns a cat . anna is at home in oslo . anna wears red . anna asks for tea .") == 2.5 / 3
    assert content("anna is at home in oslo . anna owns a cat . anna wears red . anna asks for tea .") == 1.0


def test_stuffing_and_disorder_pay_less_than_order_and_a_bag_sees_neither():
    # key points (oslo, cat), (red, tea) and anna, four times. cat before oslo: LCS 1 of 2. Twice each: LCS 2 of 4.
    for text, ordered, bag in (
        ("oslo cat red tea", 2 / 3, 2 / 3),
        ("cat oslo tea red", 1 / 3, 2 / 3),
        ("oslo cat oslo cat red tea red tea", 1 / 3, 2 / 3),
        ("oslo red", 1 / 3, 1 / 3),
        ("oslo", 0.5 / 3, 0.5 / 3),
        ("anna anna", 0.5 / 3, 0.5 / 3),
        ("anna " * 8, 0.5 / 3, 1 / 3),
        ("", 0.0, 0.0),
    ):
        assert content(text) == pytest.approx(ordered) and content(text, content="bag") == pytest.approx(bag)
    stuffed = reference_chain(answer="oslo oslo oslo cat red tea anna", task=TASK)
    assert stuffed.parts["repeated"] == pytest.approx(2 / 3)  # two beyond one in the first of three key points
    assert reference_chain(answer=REFERENCE, task=TASK).parts["repeated"] == 0.0
    assert content(REFERENCE, content="none") == 0.0


def test_style_is_the_weight_of_the_checks_that_are_passed():
    # a greeting is demanded, neither links nor a closing: each a third
    for text, style in (
        (REFERENCE, 1.0),
        (REFERENCE.removeprefix("dear reader . "), 2 / 3),
        (REFERENCE.replace("anna keeps", "also anna keeps") + " thank you .", 1 / 3),
    ):
        scored = reference_chain(answer=text, task=TASK)
        assert scored.parts["style"] == pytest.approx(style)
        assert scored.value == pytest.approx(1.0 + style)
        assert reference_chain(answer=text, task=TASK, style=False).value == 1.0


def test_the_length_term_is_off_unless_asked_for():
    # 21 words in the reference; 42 are twice as many: |2 - 1| off
    twice = f"{REFERENCE} {' '.join(['well'] * 21)}"
    assert len(REFERENCE.split()) == 21
    assert content(twice) == 1.0 and content(twice, length_penalty=0.25) == 0.75
    assert content(REFERENCE + " well well .", length_penalty=0.25) == 1.0  # 24 / 21 is within 1.2


def test_phrases_are_found_at_word_boundaries_and_in_order():
    assert found(("red", "a cat"), "Reddish. A cat, red; a cat") == ["a cat", "red", "a cat"]
    assert ordered_overlap("ba", "ab") == 0.5 and bag_overlap("ba", "ab") == 1.0 and ordered_overlap("", "") == 0.0


def test_a_task_without_key_points_is_refused():
    with pytest.raises(Exception, match="no key_points, style and reference"):
        reference_chain(answer="7", task=Task("t", "q", ("7",)))
