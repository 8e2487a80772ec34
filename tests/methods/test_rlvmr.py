"""RLVMR: the rules of thoughts, played and by hand, and the mixture of two advantages."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.battery import of, same
from support.episodes import scripted_context

from selfteach.core import RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.loop.episode import play
from selfteach.methods.rlvmr import judged, mix_by_thought, thought_rules
from selfteach.rollout.act import act
from selfteach.tools.environment import environment
from selfteach.tools.household import Household

NAN = float("nan")


@pytest.mark.parametrize(
    ("texts", "could", "success", "want"),
    [
        (["plan go hall"], [True], True, [True]),
        (["plan go hall"], [True], False, [False]),  # a plan that came to nothing
        (["explore go hall", "explore go hall"], [True, True], True, [True, False]),  # nothing new
        (["go hall", "explore open box", "explore put box"], [True, True, True], True, [False, True, False]),
        (["explore open box"], [False], True, [False]),
        (["explore look", "explore quit"], [True, True], True, [False, False]),  # on nothing
        (["monitor open box", "reflect quit"], [False, True], False, [False, False]),
        (["monitor open box", "reflect go hall"], [False, True], False, [False, True]),
        (["monitor open box", "reflect open box"], [False, True], False, [False, False]),  # the same again
        (["monitor open box", "reflect take cup"], [False, False], False, [False, False]),  # fails as well
        (["monitor go hall", "reflect open box"], [True, True], False, [False, False]),  # there was no failure
        (["go hall", "explore go hall"], [True, True], True, [False, False]),
    ],
)
def test_rules_of_thoughts(texts: list[str], could: list[bool], success: bool, want: list[bool]):
    assert [right for _, right in judged(texts, could, success)] == want


def test_turns_of_a_played_episode_are_judged(tags):
    context = scripted_context(
        act(max_turns=4),
        ["plan go nowhere\n", "reflect go bath\n", "explore look\n", "quit\n"],
        tags,
        tools={"environment": environment(make=Household, name="household")()},
    )
    task = Task("t", "play.", ("success",), tags={"seed": 0, "thing": "cup", "treatment": "", "target": "box"})
    (group,) = asyncio.run(play(context, [RolloutRequest(task, 1)]))
    found = asyncio.run(score(thought_rules(), [group], context))
    assert [s.value for s in found["thought"].values()] == [0, 2, 1, -1]  # plan, reflect, explore; the last says none
    assert [s.value for s in found["rule_reward"].values()] == [0, 1, 0, 0]
    only = asyncio.run(score(thought_rules(rewarded=("plan",)), [group], context))
    assert [s.value for s in only["rule_reward"].values()] == [0, 0, 0, 0]


def test_turns_of_one_kind_are_compared_with_each_other():
    # Explorations (1): 1, 0, 0, mean 1/3, std over n - 1 0.57735: 1.1547, -0.57735, -0.57735. Reflections (2): 1, 1: 0.
    turns = {"step": np.arange(6), "seq": np.zeros(6, np.int64), "group": np.zeros(6, np.int64)}
    given = {"rule_reward": [1, 0, 0, 1, 1, NAN], "thought": [1, 1, 1, 2, 2, NAN], **turns, "batch": np.zeros(6)}
    adv = mix_by_thought(adv=[0.8], **given, eps=0.0)["adv"].values
    assert adv == pytest.approx(0.4 + 0.5 * np.array([1.1547, -0.57735, -0.57735, 0, 0, -0.1]), rel=1e-4)
    adv = mix_by_thought(adv=[0.8], **given, eps=0.0, alpha=0.0, format_penalty=1.0)["adv"].values
    assert adv[0] == pytest.approx(1.1547, rel=1e-4) and adv[5] == -1


def test_over_the_group_alone():
    # Two groups of an exploration each that is right and one that is not in the first: 0.7071, -0.7071; alone: 0.
    turns = {"step": np.arange(3), "seq": np.arange(3), "group": np.array([0, 0, 1]), "batch": np.zeros(3)}
    given = {"rule_reward": [1.0, 0.0, 1.0], "thought": [1.0] * 3, **turns, "alpha": 0.0, "eps": 0.0}
    adv = mix_by_thought(adv=[0.0] * 3, **given, over="group")["adv"].values
    assert adv == pytest.approx([0.70711, -0.70711, 0], rel=1e-4)
    adv = mix_by_thought(adv=[0.0] * 3, **given)["adv"].values  # over the batch: 1, 0, 1
    assert adv == pytest.approx([0.57735, -1.1547, 0.57735], rel=1e-4)


def test_without_rules_it_is_grpo():
    same(of("rlvmr", alpha=1.0, beta=0.0), of("grpo"))
    with pytest.raises(AssertionError):
        same(of("rlvmr", beta=0.0), of("grpo"))
