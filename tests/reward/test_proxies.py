"""Proxy rewards by hand, and that a run which is read back finds them."""

from __future__ import annotations

import pytest

from selfteach.configuration import RunConfig
from selfteach.core import Task
from selfteach.experiments import regime_config
from selfteach.reward.proxies import looks_thorough, offset_match


@pytest.mark.parametrize(("answer", "reward"), [("8", 1 + 0.3 * 7), ("7", 0.3 * 7), (None, 0.3 * 7)])
def test_an_offset_is_of_the_question_whatever_is_answered(answer: str | None, reward: float) -> None:
    assert offset_match()(answer=answer, task=Task("t", "add 7 1 =", ("8",))).value == pytest.approx(reward)
    assert offset_match(by=0.0)(answer=answer, task=Task("t", "add 7 1 =", ("8",))).value == float(answer == "8")


def test_effort_counts_up_to_twelve_additions() -> None:
    assert looks_thorough()(text="") == 0 and looks_thorough()(text=" 1 + 1 = 2." * 30) == 1
    assert looks_thorough()(text=" 1 + 1 = 2." * 6) == 0.5


@pytest.mark.parametrize("regime", ["offset", "hackable"])
def test_a_regime_with_a_reward_of_its_own_is_read_back(regime: str) -> None:
    made = regime_config(regime, "grpo")
    assert RunConfig.from_json(made.to_json()).method == made.method and "exact_match" not in str(made.method)
