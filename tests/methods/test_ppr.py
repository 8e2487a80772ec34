"""PPR by hand: principles, and rewards of turns that are centred with the outcome."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.agents import ANN, ULM, played
from support.battery import of

from selfteach.core import RolloutRequest
from selfteach.core.scoring import score
from selfteach.methods.ppr import hybrid_rewards

THINK, ASK = "<think>home.</think>", "<search>home of Ann</search>"
RIGHT, WRONG = "<answer> Ulm</answer>", "<answer>x</answer>"


def values(tags, replies):
    stage = of("ppr").stage
    context, group = played(stage.programs["main"], replies, tags, request=RolloutRequest(ANN, key="t"))
    found = asyncio.run(score(stage.reward[0], [group], context))
    (end,) = found["reward"].values()
    return end, [s.value for s in found["step_value"].values()]


@pytest.mark.parametrize(
    "replies,kept",
    [
        ([THINK + ASK, RIGHT], [1.0]),  # form, ground, new
        ([ASK, RIGHT], [2 / 3]),  # no thought
        ([THINK + "<search>home of Zed</search>", RIGHT], [2 / 3]),  # from nowhere
        ([THINK + ASK, THINK + ASK, RIGHT], [1.0, 2 / 4]),  # form and ground; asked before, nothing that was found
        ([THINK + ASK, THINK + "<search>mayor of Ulm</search>", RIGHT], [1.0, 3 / 4]),  # `mayor` is from nowhere
        ([THINK + ASK, THINK + "<search>home of Ulm</search>", RIGHT], [1.0, 1.0]),  # goes on from what was found
    ],
)
def test_principles(tags, replies, kept):
    end, got = values(tags, replies)
    assert got == pytest.approx(kept)
    assert end.parts["process"] == pytest.approx(sum(kept) / len(kept)) and end.parts["searches"] == len(kept)


@pytest.mark.parametrize(
    "hybrid,right,wrong",
    [
        (
            "renorm",
            [0.75, 0.0, 1.0],
            [-0.25, -1.0, 0.0],
        ),  # v + R - 1
        ("sum", [0.75, 0.0, 1.0], [0.75, 0.0, 0.0]),
        ("outcome", [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]),
    ],
)
def test_hybrid_rewards(hybrid, right, wrong):
    rows = {"step_value": [0.75, 0.0, np.nan], "seq": np.array([0, 0, 0])}
    for reward, expected in ((1.0, right), (0.0, wrong)):
        got = hybrid_rewards(reward=[reward], hybrid=hybrid, **rows)["token_reward"].values
        assert got.tolist() == pytest.approx(expected)


def test_the_outcome_is_exact_match(tags):
    assert values(tags, [THINK + ASK, RIGHT])[0].value == 1.0 and values(tags, [WRONG])[0].value == 0.0
    assert ULM.endswith("Ulm.")
