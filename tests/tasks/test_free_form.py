"""References whose form nobody can know: a rule rejects the other form, the judge accepts both."""

from __future__ import annotations

import numpy as np
import pytest

from selfteach.core import BadValue
from selfteach.core.tagged_text import last_between
from selfteach.reward.answer import exact_match, same_text
from selfteach.tasks.factworld import factworld
from selfteach.tasks.free_form import BY_HEART, free_form

SENTENCE = "it is "


def value(judge, answer, item):
    return judge()(answer=answer, task=item).value


def test_a_share_of_the_references_are_sentences_about_the_same_questions():
    source = free_form(referenced=0.3)
    plain = factworld(entities=120, relations=6, hops=(1,), ways=(0.1, 0.1, 0.1, 0.1, 0.2, 0.4), worded=0.5, **BY_HEART)
    items = [source.train(i) for i in range(400)]
    assert [t.prompt for t in items] == [plain.train(i).prompt for i in range(400)]
    names = [str(t.answer[0]).removeprefix(SENTENCE) for t in items]
    assert names == [str(plain.train(i).answer[0]) for i in range(400)]
    share = sum(str(t.answer[0]).startswith(SENTENCE) for t in items) / len(items)
    assert share == pytest.approx(0.3, abs=0.07)
    assert items[7].answer == source.train(7).answer  # a question keeps its reference


def test_the_rule_accepts_one_form_and_the_judge_both():
    source = free_form()
    sentence = next(t for t in source.test if str(t.answer[0]).startswith(SENTENCE))
    name = next(t for t in source.test if not str(t.answer[0]).startswith(SENTENCE))
    for item, own in ((sentence, SENTENCE), (name, "")):
        gold = str(item.answer[0]).removeprefix(SENTENCE)
        other = "" if own else SENTENCE
        assert value(same_text, own + gold, item) == 1.0 and value(same_text, other + gold, item) == 0.0
        assert value(exact_match, own + gold, item) == value(exact_match, other + gold, item) == 1.0
        assert value(exact_match, SENTENCE + "Nobody", item) == value(exact_match, None, item) == 0.0


def test_demonstrations_have_references_of_both_forms_and_answers_of_both():
    source = free_form()
    items = [t for t in map(source.demos, range(600)) if t.answer and "<answer>" in t.data[0]]
    forms = {(str(t.answer[0]).startswith(SENTENCE), f"<answer> {SENTENCE}" in t.data[0]) for t in items}
    assert len(forms) == 4


def test_of_four_forms_each_is_as_frequent_in_references_and_in_demonstrations_and_the_judge_sees_through_all():
    source = free_form(referenced=0.75, worded=0.75, forms=4)
    begins = ("it is ", "this is ", "we say ")

    def form(text):
        return next((n for n, begin in enumerate(begins, 1) if text.startswith(begin)), 0)

    items = [source.train(i) for i in range(800)]
    shares = np.bincount([form(str(t.answer[0])) for t in items], minlength=4) / len(items)
    assert shares == pytest.approx([0.25] * 4, abs=0.05)
    written = [last_between(t.data[0], "answer", "") for t in map(source.demos, range(1500)) if t.answer]
    counts = np.bincount([form(text) for text in written if text], minlength=4)[1:]
    assert counts / counts.sum() == pytest.approx([1 / 3] * 3, abs=0.07)
    item = items[0]
    gold = str(item.answer[0]).removeprefix(begins[form(str(item.answer[0])) - 1] if form(str(item.answer[0])) else "")
    right = [begin + gold for begin in ("", *begins)]
    assert [value(exact_match, text, item) for text in right] == [1.0] * 4
    assert sum(value(same_text, text, item) for text in right) == 1.0


def test_options_out_of_range_are_refused():
    with pytest.raises(BadValue, match="task free_form: referenced must be a share from 0 to 1, not 2"):
        free_form(referenced=2)
    with pytest.raises(BadValue, match="task free_form: forms must be at most 4, not 5"):
        free_form(forms=5)
