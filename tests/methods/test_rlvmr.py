"""RLVMR: the rules of thoughts, played and by hand, and the mixture of two advantages."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.battery import Study, of, same_gradient
from support.episodes import scripted_context, single_turn_group

from selfteach.core import RolloutGroup, RolloutRequest, Score, Task
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
    # The last turn says no kind, and has no rule part. Without a penalty all turns have the return 0.8: 0.
    turns = {"step": np.arange(6), "seq": np.zeros(6, np.int64), "group": np.zeros(6, np.int64)}
    given = {"rule_reward": [1, 0, 0, 1, 1, NAN], "thought": [1, 1, 1, 2, 2, NAN], **turns, "batch": np.zeros(6)}
    adv = mix_by_thought(reward=[0.8], **given, eps=0.0, format_penalty=0.0)["adv"].values
    assert adv == pytest.approx(0.5 * np.array([1.1547, -0.57735, -0.57735, 0, 0, 0]), rel=1e-4)


def test_a_turn_without_a_kind_is_the_worst_of_a_failure():
    # Ten turns of failures, of which one says no kind: R = -0.1 there, mean -0.01, std over n - 1 0.031623: -2.846 and
    # 0.3162, and half of them by alpha. How much the penalty is cancels.
    turns = {"step": np.arange(10), "seq": np.repeat([0, 1], 5), "group": np.zeros(10, np.int64), "batch": np.zeros(10)}
    given = {"rule_reward": [0.0] * 10, "thought": [3.0] * 7 + [-1.0] + [3.0] * 2, **turns, "eps": 0.0}
    adv = mix_by_thought(reward=[0.0, 0.0], **given)["adv"].values
    assert adv == pytest.approx(0.5 * np.array([0.31623] * 7 + [-2.84605] + [0.31623] * 2), rel=1e-4)
    assert mix_by_thought(reward=[0.0, 0.0], **given, format_penalty=1.0)["adv"].values == pytest.approx(adv)
    assert not mix_by_thought(reward=[0.0, 0.0], **given, format_penalty=0.0)["adv"].values.any()


def test_returns_are_compared_over_the_turns_of_a_group():
    # A success of one turn, a failure of three: mean 1/4, std over n - 1 1/2: 1.5 and -0.5, where episodes would have
    # 0.7071. Another group, all of whose turns have one return: 0. The third turn says no kind: R = -1/2, so that the
    # mean is 1/8 and the std 0.62915.
    turns = {"step": np.arange(5), "seq": [0, 1, 1, 1, 2], "group": [0, 0, 0, 0, 1], "batch": np.zeros(5)}
    given = {"rule_reward": [0.0] * 5, **turns, "alpha": 1.0, "eps": 0.0, "format_penalty": 0.5}
    adv = mix_by_thought(reward=[1.0, 0.0, 5.0], **given, thought=[3.0] * 5)["adv"].values
    assert adv == pytest.approx([1.5, -0.5, -0.5, -0.5, 0])
    adv = mix_by_thought(reward=[1.0, 0.0, 5.0], **given, thought=[3.0, 3.0, NAN, 3.0, 3.0])["adv"].values
    assert adv == pytest.approx(np.array([0.875, -0.125, -0.625, -0.125, 0]) / 0.62915, rel=1e-4)


def test_over_the_group_alone():
    # Two groups of an exploration each that is right and one that is not in the first: 0.7071, -0.7071; alone: 0.
    turns = {"step": np.arange(3), "seq": np.arange(3), "group": np.array([0, 0, 1]), "batch": np.zeros(3)}
    given = {"rule_reward": [1.0, 0.0, 1.0], "thought": [1.0] * 3, **turns, "alpha": 0.0, "eps": 0.0}
    adv = mix_by_thought(reward=[0.0] * 3, **given, over="group")["adv"].values
    assert adv == pytest.approx([0.70711, -0.70711, 0], rel=1e-4)
    adv = mix_by_thought(reward=[0.0] * 3, **given)["adv"].values  # over the batch: 1, 0, 1
    assert adv == pytest.approx([0.57735, -1.1547, 0.57735], rel=1e-4)


def thought_group(rewards: list[float], key: str) -> RolloutGroup:
    """Episodes of one turn, each a plan; its rule holds for the first."""
    group = single_turn_group([(5 + i, 6) for i in range(len(rewards))], rewards, key=key)
    for name, values in {"thought": [0.0] * len(rewards), "rule_reward": [1.0] + [0.0] * (len(rewards) - 1)}.items():
        group.scores[name] = dict(zip(group.scores["reward"], map(Score, values), strict=True))
    return group


def test_without_rules_it_is_grpo_where_episodes_are_of_one_turn():
    groups = [thought_group([1.0, 0.0, 0.0], "g0"), thought_group([0.0, 1.0], "g1")]
    grpo = Study(of("grpo"), groups)
    same_gradient(Study(of("rlvmr", alpha=1.0, beta=0.0), groups), grpo)
    with pytest.raises(AssertionError):
        same_gradient(Study(of("rlvmr", beta=0.0), groups), grpo)
