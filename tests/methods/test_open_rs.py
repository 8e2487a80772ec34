"""Open-RS by hand: the format, and the cosine that takes the place of accuracy."""

from __future__ import annotations

from typing import Any

import pytest
from support.answers import answered_group, paid
from support.battery import of

from selfteach.reward.answer import thought_then_answer

FORM = "<think>a</think><answer>7</answer>"  # 34 letters


def rewards(letters: Any, texts: list[str], **args: Any) -> list[float | None]:
    group, context, _ = answered_group(texts, "7", letters, lambda text: [0.0])
    return [s.value for s in paid(of("open_rs", **args).stage.reward[0], group, context=context)]


def test_the_reward_by_hand(letters):
    # at half of the limit, 68, the cosine is half-way: 1 + 2 * 3/4; wrong: 1 + 2 * -1/4. Without the form, of 18
    # letters of 36: 2 * 3/4
    assert rewards(letters, [FORM, FORM.replace("7", "5")], limit=68) == pytest.approx([2.5, 0.5])
    assert rewards(letters, ["<answer>7</answer>"], limit=36) == pytest.approx([1.5])
    ends = {"right_short": 4.0, "right_long": 2.0, "wrong_short": -4.0, "wrong_long": -2.0}
    assert rewards(letters, [FORM, FORM.replace("7", "5")], limit=68, **ends) == pytest.approx([7.0, -5.0])


def test_experiments_1_and_2_reward_accuracy(letters):
    assert rewards(letters, [FORM, FORM.replace("7", "5")], cosine=False) == [3.0, 1.0]
    assert rewards(letters, [FORM], cosine=False, format=0.5, outcome=1.0) == [1.5]


def test_the_form_is_one_thought_and_one_answer():
    for text, right in (
        ("<think>\na\n</think>\n<answer>7</answer>\n", 1),
        ("so <think>a</think><answer>7</answer>", 0),
        ("<think>a</think><answer>7", 0),
        ("<think>a</think>", 0),
    ):
        assert thought_then_answer(text=text).value == right, text


def test_few_questions_come_round_again():
    assert of("open_rs").stage.select.name == "uniform"
    few = of("open_rs", questions=64, temperature=0.5, rollouts=4)
    assert str(few.stage.select) == "pool(size=64)" and few.stage.sampling.temperature == 0.5
