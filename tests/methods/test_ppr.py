"""PPR by hand: principles, and rewards of turns that are centred with the outcome."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.agents import played
from support.battery import of

from selfteach.core import RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.methods.ppr import hybrid_rewards

HOME, MAYOR, RIVER = "the home of Ann is Ulm.", "the mayor of Ulm is Bob.", "the river of Ulm is Po."
TASK = Task(
    "t",
    "question: what is the mayor of the home of Ann?\n",
    ("Bob",),
    tags={"chain": (HOME, MAYOR), "keywords": (("home of Ann", "Ann home"), ("mayor of Ulm", "Ulm mayor"))},
)
FOUND = {"home of Ann": HOME, "Ann home": HOME, "mayor of Ulm": MAYOR, "river of Ulm": RIVER}
THINK, AWAY = "<think>home.</think>", "<search>river of Ulm</search>"
FIRST, AGAIN, LATER = (f"<search>{q}</search>" for q in ("home of Ann", "Ann home", "mayor of Ulm"))
RIGHT, WRONG = "<answer> Bob</answer>", "<answer>x</answer>"


def values(tags, replies, engine=FOUND.__getitem__):
    stage = of("ppr").stage
    context, group = played(stage.programs["main"], replies, tags, engine, request=RolloutRequest(TASK, key="t"))
    found = asyncio.run(score(stage.reward[0], [group], context))
    (end,) = found["reward"].values()
    return end, [s.value for s in found["step_value"].values()]


@pytest.mark.parametrize(
    "replies,kept",
    [
        ([THINK + FIRST, THINK + LATER, RIGHT], [1, 1]),  # right queries, needed, and both find it
        ([FIRST, RIGHT], [1]),  # a thought is no principle
        ([THINK + FIRST, THINK + FIRST, RIGHT], [1, 1 / 3]),  # found before
        ([THINK + FIRST, THINK + AGAIN, RIGHT], [1, 1 / 3]),  # in whatever words
        ([THINK + FIRST, THINK + AWAY, RIGHT], [1, 0]),  # nothing that is asked for
        (["so " + THINK + FIRST, RIGHT], [0]),  # text outside the tags
        ([THINK + "so" + FIRST, RIGHT], [0]),
        (["<think>home." + FIRST, RIGHT], [0]),  # a tag left open
        ([THINK + FIRST, "hm", THINK, RIGHT], [1, 0, 0]),  # turns with neither a query nor an answer
        ([RIGHT], []),
    ],
)
def test_principles(tags, replies, kept):
    end, got = values(tags, replies)
    assert got == pytest.approx(kept) and end.parts.get("process") == (
        pytest.approx(sum(kept) / len(kept)) if kept else None
    )
    assert end.parts["searches"] == sum("</search>" in r for r in replies)


def test_what_a_search_finds_counts(tags):
    # the engine gives another document: a right query, which was needed; the same words again were not
    replies = [THINK + FIRST, THINK + FIRST, THINK + AGAIN, WRONG]
    assert values(tags, replies, lambda query: RIVER)[1] == pytest.approx([2 / 3, 1 / 3, 2 / 3])


def test_a_turn_with_neither_has_the_outcome_less_one(tags):
    end, kept = values(tags, [THINK + FIRST, "hm", WRONG])
    rows = {"reward": [end.value], "step_value": [*kept, np.nan], "seq": np.array([0, 0, 0])}
    assert hybrid_rewards(**rows)["token_reward"].values.tolist() == pytest.approx([0.0, -1.0, 0.0])


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
    assert values(tags, [THINK + FIRST, RIGHT])[0].value == 1.0 and values(tags, [WRONG])[0].value == 0.0
