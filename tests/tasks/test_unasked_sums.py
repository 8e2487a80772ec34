"""Sums of which some demonstrations answer no question: how many, behind what, and that questions stay as they are."""

from __future__ import annotations

from typing import Any

import pytest

from selfteach import task_source
from selfteach.core import BadValue
from selfteach.model.tokenizer import train_tokenizer
from selfteach.tasks.unasked_sums import BLANK


def source(**options: Any) -> Any:
    return task_source("unasked_sums", {"largest": 3, "n_test": 100, **options})


def test_a_share_of_the_demonstrations_whose_way_is_not_given_comes_behind_a_blank_prompt():
    made, plain = source(unasked=0.4, practised=0.5), source(unasked=0.0, practised=0.5)
    items, asked = [made.demos(i) for i in range(600)], [plain.demos(i) for i in range(600)]
    unasked = [i for i, item in enumerate(items) if item.prompt == BLANK]
    assert 0.15 < len(unasked) / 600 < 0.25, "0.4 of one half"
    assert all(asked[i].tags["kind"] == "demo" and items[i].data == asked[i].data for i in unasked)
    assert all(items[i].prompt == asked[i].prompt for i in range(600) if i not in unasked)
    assert [made.train(i).prompt for i in range(20)] == [plain.train(i).prompt for i in range(20)]
    with pytest.raises(BadValue, match="unasked_sums: unasked must be a share"):
        source(unasked=2.0)


def test_what_is_practised_without_its_question_says_the_way_itself():
    made, plain = source(unasked=0.5), source(unasked=0.0)
    items = [(made.practice(i), plain.practice(i)) for i in range(200)]
    unasked = [(item, asked) for item, asked in items if item.prompt == BLANK]
    assert 0.4 < len(unasked) / 200 < 0.6
    for item, asked in unasked:
        question, given = asked.prompt.split("\n")
        assert question.startswith("add") and item.data[0] == given + asked.data[0]
        assert item.data[0].startswith("<think> ") and item.data[0].endswith("</answer>")


def test_blank_is_the_blank_prompt_of_the_tokenizer_that_is_made_for_the_task():
    made = source()
    tokenizer = train_tokenizer(made.words(), made.tags)
    assert tokenizer.blank_prompt(made.train(0).prompt).tolist() == list(BLANK)
