"""ACE-RL by hand: the mean grade of a checklist, one coarse mark in its place, and a length."""

from __future__ import annotations

import pytest

from selfteach.core import Task
from selfteach.methods.ace_rl import checklist_grade, coarse, length_reward
from selfteach.tasks.report import Reports, Request

TASK = Reports.to_task(Request("anna", (("home", "oslo"), ("pet", "cat"), ("colour", "red")), ("greet", "link")), "t")
GOOD = "dear reader . anna lives in oslo . also anna owns a cat . also anna likes red ."
# the first fact is missing (partly), the greeting is not first (partly), one of one facts is linked, no closing
POOR = "anna keeps a cat . also anna likes red . dear reader ."


def test_the_mean_grade_of_the_checklist():
    assert checklist_grade(answer=GOOD, task=TASK).value == pytest.approx(1.0)
    # content 0.5, order 1, greet 0.5, link 1, close 1: mean 0.8; without half marks 0.6
    value = lambda **how: checklist_grade(answer=POOR, task=TASK, length_weight=0.0, **how).value  # noqa: E731
    assert value() == pytest.approx(0.8) and value(partial=False) == pytest.approx(0.6)
    assert value(levels=3) == 0.5 and value(levels=2) == 0.0
    scored = checklist_grade(answer=POOR, task=TASK)
    assert scored.parts["followed"] == pytest.approx(0.6) and scored.parts["unsaid"] == 1.0
    assert scored.parts["right"] == 0.0


def test_one_mark_calls_equal_what_a_checklist_tells_apart():
    better = "dear reader . anna keeps a cat . also anna likes red ."  # greets first: 0.5, 1, 1, 1, 1: 0.9
    fine = [checklist_grade(answer=a, task=TASK, length_weight=0.0).value for a in (POOR, better, GOOD)]
    rough = [checklist_grade(answer=a, task=TASK, length_weight=0.0, levels=3).value for a in (POOR, better, GOOD)]
    assert fine == pytest.approx([0.8, 0.9, 1.0]) and rough == [0.5, 0.5, 1.0]
    assert [coarse(m, 3) for m in (0.0, 0.49, 0.5, 0.99, 1.0)] == [0.0, 0.0, 0.5, 0.5, 1.0]
    with pytest.raises(Exception, match="levels must be 0 or at least 2"):
        coarse(0.5, 1)


def test_the_length_is_rewarded_by_itself():
    # 19 tokens (the stops count) are asked for; 13 are 6 / 19 off: beyond 0.1 the reward is (1 - 6 / 19) / 0.9 = 0.760
    assert TASK.tags["target_length"] == 19 and len(POOR.split()) == 13
    scored = checklist_grade(answer=POOR, task=TASK, length_weight=0.5)
    assert scored.parts["length_error"] == pytest.approx(6 / 19)
    assert scored.parts["length"] == pytest.approx(13 / 19 / 0.9)
    assert scored.value == pytest.approx(0.5 * 0.8 + 0.5 * 0.7602, abs=1e-3)
    assert checklist_grade(answer=POOR, task=TASK, length_weight=1.0, tolerance=0.4).value == 1.0
    assert length_reward(0.1, 0.1) == 1.0 and length_reward(2.0, 0.1) == 0.0


def test_a_noisy_checker_errs_and_errs_the_same_way_again():
    texts = [f"{GOOD} {n} ." for n in range(200)]
    first = [checklist_grade(answer=t, task=TASK, noise=0.3, length_weight=0.0).value for t in texts]
    again = [checklist_grade(answer=t, task=TASK, noise=0.3, length_weight=0.0).value for t in texts]
    # each of five grades of 1 becomes 0.5 on average, three times in ten: 1 - 0.3 0.5 = 0.85
    assert first == again and sum(first) / 200 == pytest.approx(0.85, abs=0.03)
    true = checklist_grade(answer=texts[0], task=TASK, noise=1.0).parts
    assert true["followed"] == 1.0 and true["unsaid"] == pytest.approx(2 / 3)  # these stay true


def test_a_task_without_a_checklist_is_refused():
    with pytest.raises(Exception, match="no checklist and target_length"):
        checklist_grade(answer="7", task=Task("t", "q", ("7",)))
