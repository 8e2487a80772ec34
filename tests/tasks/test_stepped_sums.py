"""Sums in steps of one size or another: all of them right where no digit is misread, the fewer the larger."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from selfteach.configuration import task_source
from selfteach.core.errors import BadValue
from selfteach.core.random_keys import generator
from selfteach.tasks.stepped_sums import worked_in_steps


def source(**options: Any) -> Any:
    return task_source("stepped_sums", options)


def test_steps_by_hand():
    draw = generator(0)
    # 7 + 3 = 0, 0 + 2 = 2, 2 + 1 = 3, 3 + 3 = 6; three at a time 7 + 3 + 2 + 1 = 3, 3 + 3 = 6
    digits = (7, 3, 2, 1, 3)
    assert worked_in_steps(digits, 1, 0.0, draw) == [" 7 + 3 = 0.", " 0 + 2 = 2.", " 2 + 1 = 3.", " 3 + 3 = 6."]
    assert worked_in_steps(digits, 3, 0.0, draw) == [" 7 + 3 + 2 + 1 = 3.", " 3 + 3 = 6."]
    assert worked_in_steps(digits, 9, 0.0, draw) == [" 7 + 3 + 2 + 1 + 3 = 6."]


def test_demonstrations_of_every_size_come_to_the_answer_in_as_many_steps_as_that_takes():
    demos = [source(terms=(4, 9), sizes=(1, 2, 4), shares=(0.25, 0.25, 0.5)).demos(i) for i in range(600)]
    for demo in demos:
        size = int(re.match(r"<think> by (\d)", demo.data[0])[1])  # type: ignore[index]
        assert demo.data[0].endswith(f"<answer> {demo.answer[0]}</answer>")
        assert demo.data[0].count("=") == -(-(demo.tags["terms"] - 1) // size)
        assert demo.tags["way"] == f"by {size}"
    shares = Counter(demo.tags["way"] for demo in demos)
    assert [shares[f"by {n}"] / 600 for n in (1, 2, 4)] == pytest.approx([0.25, 0.25, 0.5], abs=0.06)
    practised = source().practice(3)
    assert practised.prompt.endswith(f"<think> {practised.tags['way']}") and practised.data[0].startswith(" ")


def test_misread_digits_spoil_more_answers_the_more_steps_there_are():
    built = source(terms=(9, 9), sizes=(1, 8), shares=(0.5, 0.5), misread=0.2)
    wrong = Counter[str]()
    for demo in map(built.demos, range(2000)):
        wrong[demo.tags["way"]] += not demo.data[0].endswith(f"<answer> {demo.answer[0]}</answer>")
    # a misread digit is another one in nine cases of ten: one step in six (0.18), and of eight steps about four in five
    assert wrong["by 8"] / 1000 == pytest.approx(0.18, abs=0.04)
    assert wrong["by 1"] / 1000 == pytest.approx(0.76, abs=0.06)


def test_what_cannot_be_is_refused():
    wrong = (
        {"sizes": (), "shares": ()},
        {"sizes": (0, 1), "shares": (0.5, 0.5)},
        {"shares": (0.5, 0.5)},
        {"largest": 10},
    )
    for options in (*wrong, {"misread": 1.5}, {"terms": (1, 4)}, {"shares": (1.5, -0.5, 0.0)}):
        with pytest.raises(BadValue, match="stepped_sums"):
            source(**options)
