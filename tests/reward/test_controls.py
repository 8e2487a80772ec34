"""Rewards as controls, and putting one into a method."""

import asyncio

import pytest
from support.episodes import single_turn_group
from support.scores import Reader, by_sample

from selfteach.core import BadValue, Score, Scores, block, stateful
from selfteach.core.blocks import initial_state
from selfteach.core.scoring import score, whole_step
from selfteach.methods import g_ra, grpo, sft
from selfteach.reward.answer import same_text
from selfteach.reward.controls import shuffled, shuffled_stateful


def dealt(keys):
    groups = [single_turn_group([(10 + i,) for i in range(4)], [None] * 4, key=k) for k in keys]
    found = asyncio.run(score(shuffled(reward=by_sample(1.0, 2.0, 3.0, 4.0)), groups, Reader(), 5.0))["reward"]
    return [s.value for s in found.values()]


def test_rewards_are_dealt_out_over_the_whole_step():
    values = dealt("abcdefgh")
    assert sorted(values) == sorted([1.0, 2.0, 3.0, 4.0] * 8)
    assert values != [1.0, 2.0, 3.0, 4.0] * 8
    assert any(len(set(values[i : i + 4])) < 4 for i in range(0, 32, 4)), "each group has its own values still"
    assert values == dealt("abcdefgh") and values != dealt("hgfedcba")
    assert whole_step(shuffled())


def test_a_place_is_rewarded_no_more_by_its_own_verdict_than_by_chance():
    """Sample 3 of every group has 4; over many steps its place gets the mean of all, 2.5 (standard error 0.04)."""
    got = [dealt([f"{step}/{g}" for g in range(4)])[3::4] for step in range(200)]
    assert sum(map(sum, got)) / 800 == pytest.approx(2.5, abs=0.16)


@block
@stateful(lambda: {"seen": 0})
def counted(*, groups: list, state: dict) -> tuple:
    """Every trajectory is worth its number among all that there ever were."""
    out, seen = Scores({"reward": {}}), state["seen"]
    for t in (t for g in groups for e in g.episodes for t in e.learned):
        out["reward"][t.leaf] = Score(float(seen))
        seen += 1
    return out, {"seen": seen}


def test_a_reward_that_is_stateful_goes_on_while_its_values_are_dealt_out():
    made = shuffled_stateful(reward=counted())
    state = [initial_state(made)]
    for step in range(2):
        groups = [single_turn_group([(10 + i,) for i in range(4)], [None] * 4, key=f"{step}/{k}") for k in "abcd"]
        found = asyncio.run(score(made, groups, Reader(), 5.0, state=state))["reward"]
        values = [s.value for s in found.values()]
        here = [float(n) for n in range(16 * step, 16 * step + 16)]
        assert sorted(values) == here and values != here
        assert state == [{"inner": {"seen": 16 * (step + 1)}}]
    assert whole_step(made) and "state" not in shuffled().needs


def test_a_method_gets_another_reward_wherever_it_has_exact_match():
    assert str(grpo().with_reward(same_text()).stage.reward) == "(same_text(),)"
    inner = str(g_ra().with_reward(same_text()).stage.reward)
    assert "same_text()" in inner and "exact_match" not in inner
    assert grpo().with_reward(same_text()).diff(grpo()) == [("reward.0", "same_text()", "exact_match()")]


def test_a_method_without_it_says_what_it_has():
    with pytest.raises(BadValue, match=r"method sft: has no reward exact_match .* its rewards are none"):
        sft().with_reward(same_text())
