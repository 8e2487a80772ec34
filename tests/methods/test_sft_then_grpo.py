"""The two-stage recipe by hand: how long each stage lasts, and the sum of its three rewards."""

from __future__ import annotations

from typing import Any

import pytest
from support.answers import answered_group, paid
from support.battery import of

FORM = "<think>a</think><answer>7</answer>"  # 34 letters
LONG = "<think>" + "a" * 35 + "</think><answer>7</answer>"  # 68
BARE = "<answer>7</answer>"  # 18


def rewards(letters: Any, texts: list[str], **args: Any) -> list[float | None]:
    group, context, _ = answered_group(texts, "7", letters, lambda text: [0.0])
    return [s.value for s in paid(of("sft_then_grpo", **args).stage.reward[0], group, context=context)]


def test_the_reward_by_hand(letters):
    # At half of the limit the cosine is half-way, 0.55 where right and -0.55 where wrong; at the limit 0.1 and -0.1.
    # lambda is 1/2 for the shortest and -1/2 for the longest; of wrong answers at most 0.
    right = rewards(letters, [FORM, LONG], limit=68)
    assert right == pytest.approx([1 + 0.55 + 0.5, 1 + 0.1 - 0.5])
    wrong = rewards(letters, [FORM.replace("7", "5"), LONG.replace("7", "5")], limit=68)
    assert wrong == pytest.approx([1 - 0.55 + 0.0, 1 - 0.1 - 0.5])


def test_each_of_the_three_rewards_can_be_left_out(letters):
    assert rewards(letters, [FORM, LONG], cosine=False, brevity=0.0, format=0.0) == [1.0, 1.0]
    assert rewards(letters, [FORM, LONG], cosine=False, format=0.0) == [1.5, 0.5]
    assert rewards(letters, [BARE, FORM], cosine=False, brevity=0.0) == [1.0, 2.0]
    ends = {"right_short": 4.0, "right_long": 2.0, "wrong_short": -4.0, "wrong_long": -2.0, "format": 0.0}
    assert rewards(letters, [FORM, FORM.replace("7", "5")], limit=68, **ends) == pytest.approx([3.0, -3.0])


def test_the_expert_is_imitated_for_so_many_epochs_and_grpo_follows():
    sft, rl = of("sft_then_grpo", epochs=10, pool=100, batch=32, sft_lr=1e-4, style="twice", slips=True).stages
    assert sft.until == 32 and sft.data and sft.groups == 32  # 1000 demonstrations in batches of 32
    assert str(sft.select) == "experts(pool=100, style='twice', slips=True)" and sft.updates[0].lr == 1e-4
    assert rl.until is None and rl.enter == {"ref": "policy"} and rl.reset == ("policy",)
    assert of("sft_then_grpo", beta=0.0).stage.enter == {}
    alone = of("sft_then_grpo", sft=False)
    assert len(alone.stages) == 1 and alone.stage.reset == ()
