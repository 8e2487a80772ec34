"""Self-Rewarded Efficiency RL by hand: what a right answer loses by being longer than the shortest right one."""

from __future__ import annotations

from typing import Any

import pytest
from support.answers import answered_group, paid
from support.battery import of

WRONG = "<answer>5</answer>"  # 18 letters


def right(letters: int) -> str:
    """A right answer of so many letters."""
    return "a" * (letters - 18) + "<answer>7</answer>"


def scores(letters: Any, texts: list[str], **args: Any) -> list[Any]:
    group, context, _ = answered_group(texts, "7", letters, lambda text: [0.0])
    return paid(of("self_rewarded_efficiency", **args).stage.reward[0], group, context=context)


def test_the_reward_by_hand(letters):
    # three of four are right: p = 3/4; of 20, 25 and 40 letters: 0, 1/4 and 1 of the way. 1 - 1/2 * 3/4 * excess
    found = scores(letters, [right(25), WRONG, right(20), right(40)])
    assert [s.value for s in found] == pytest.approx([1 - 3 / 32, 0, 1, 1 - 3 / 8])
    assert [s.parts.get("excess") for s in found] == [0.25, None, 0.0, 1.0]
    assert {s.parts["spread"] for s in found if "spread" in s.parts} == {0.5}
    # without the balance p = 1
    fixed = scores(letters, [right(25), WRONG, right(20), right(40)], dynamic=False, alpha=0.8)
    assert [s.value for s in fixed] == pytest.approx([0.8, 0, 1, 0.2])


def test_the_less_is_right_the_less_length_counts(letters):
    # one, two and three wrong ones beside two right ones of 20 and 40 letters: 1 - 1/2 * 2/3, 2/4, 2/5
    long = [scores(letters, [right(20), right(40), *[WRONG] * n])[1].value for n in (1, 2, 3)]
    assert long == pytest.approx([2 / 3, 3 / 4, 4 / 5])


def test_a_wrong_answer_gains_nothing_by_its_length(letters):
    assert [s.value for s in scores(letters, [WRONG, "a" * 60 + WRONG])] == [0.0, 0.0]
    # and its length, the longest by far, does not stretch the range of the right ones
    assert scores(letters, [right(20), right(40), "a" * 60 + WRONG])[1].value == pytest.approx(2 / 3)
    assert [s.value for s in scores(letters, [right(20), right(20)])] == [1.0, 1.0]
    assert [s.value for s in scores(letters, [right(20), right(40)], alpha=0.0)] == [1.0, 1.0]
