"""Sums in two languages: what is asked, what is right, what demonstrations mix, and what the judge sees."""

from __future__ import annotations

import re
from typing import Any

import pytest

from selfteach import task_source
from selfteach.core import BadValue, Task
from selfteach.reward.answer import exact_match
from selfteach.tasks.two_tongues import languages, one_language, translated


def source(**options: Any) -> Any:
    return task_source("two_tongues", {"largest": 3, "n_test": 100, **options})


def test_half_of_the_questions_are_in_each_language_and_an_answer_is_right_in_both():
    made = source()
    tasks = [made.train(i) for i in range(300)]
    assert 0.4 < sum(languages(t.prompt)[1] > 0 for t in tasks) / 300 < 0.6
    for item in (*tasks[:50], *made.test[:50]):
        assert 0 in languages(item.prompt), "a question is in one language"
        digit = item.answer[0]
        assert item.answer == (digit, translated(digit))
        assert all(exact_match(answer=a, task=item).value == 1.0 for a in item.answer)
    held_out = {re.sub(r"\s", "", translated(t.prompt)) for t in made.test}
    asked = {re.sub(r"\s", "", translated(t.prompt)) for t in tasks}
    assert not held_out & asked, "the same sum in the other language is no other question"


def test_demonstrations_mix_as_often_as_they_are_told_and_practice_never_does():
    def share(mixed: float, make: str = "demos") -> float:
        made = source(mixed=mixed, practised=0.0)
        items = [getattr(made, make)(i) for i in range(400)]
        return sum(not one_language()(text=d.data[0], task=d) for d in items) / len(items)

    # a guess has one piece, so that all of it changes: every change is seen
    assert share(0.0) == 0.0 and share(1.0) == 1.0 and 0.4 < share(0.5) < 0.6 and share(1.0, "practice") == 0.0
    with pytest.raises(BadValue, match="two_tongues: mixed must be a share"):
        source(mixed=2.0)


def test_the_judge_sees_one_word_of_the_other_language():
    first, second = Task("a", "add 2 3 ="), Task("b", "tel twee drie =")
    text = "<think> slowly 2 + 3 = 5.</think><answer> 5</answer>"
    assert one_language()(text=text, task=first) and not one_language()(text=text, task=second)
    assert one_language()(text=translated(text), task=second)
    assert not one_language()(text=text.replace("= 5", "= vijf"), task=first)
    assert not one_language()(text="</think>", task=first), "no words are in no language"
