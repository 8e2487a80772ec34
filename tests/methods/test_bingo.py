"""Bingo by hand: significant and insignificant tokens against the reference's, and a weight that follows accuracy."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from support.battery import of
from support.episodes import scripted_context, single_turn_group
from support.scores import Reader, by_sample

from selfteach.core import Block, Ref, RolloutGroup, RolloutRequest, Task, Trajectory
from selfteach.core.blocks import initial_state
from selfteach.core.scoring import score
from selfteach.loop.episode import play
from selfteach.methods.bingo import after_slope, significance_reward, significant_length
from selfteach.rollout.beside_reference import REFERENCE, beside_reference

UNIT = 5 / (math.pi / 2)


def group_of(*references: tuple[int, ...]) -> RolloutGroup:
    """A right answer, 5 6 7 5 6, a wrong one, 5, and answers of the reference in the first episode."""
    group = single_turn_group([(5, 6, 7, 5, 6), (5,)], [None, None])
    episode = group.episodes[0]
    for ids in references:
        leaf = episode.tree.add(0, ids, action_mask=True, role="ref")
        episode.trajectories.append(Trajectory(Ref(episode.id, leaf), REFERENCE, "k", learn=None))
    return group


def scored(part: Block, group: RolloutGroup, state: Any = None) -> tuple[list[Any], Any]:
    cell = [state or initial_state(part)]
    found = asyncio.run(score(part, [group], Reader(), 5.0, state=cell))["reward"]  # type: ignore[arg-type]
    return list(found.values()), cell[0]


def test_the_rewards_by_hand():
    how = {"k": 3.0, "bonus": 5.0, "redundancy": 2.0, "explore": 5.0}
    # right: 1 + 5 cos(q_low), nothing beyond pi/2; whatever is significant is free
    assert significance_reward(True, 1.0, 9.0, **how) == pytest.approx(1 + 5 * math.cos(1.0))
    assert significance_reward(True, 7.0, 1.0, **how) == pytest.approx(1.0)
    # wrong: 2 (cos(1) - 1) + 3 * 1/2 - 5; never above 0
    assert significance_reward(False, 1.0, 0.5, **how) == pytest.approx(2 * (math.cos(1.0) - 1) + 1.5 - 5)
    assert significance_reward(False, 0.0, 9.0, **how) == 0.0


def test_tokens_are_compared_with_those_of_the_reference():
    # bigrams: 5 6 7 5 6 repeats two of five; the reference's 5 6 5 6 two of four, its 5 6 none: means 1 and 2.
    part = significant_length(judge=by_sample(1.0, 0.0), ngram=2)
    (right, wrong), _ = scored(part, group_of((5, 6, 5, 6), (5, 6)))
    assert right.value == pytest.approx(1.0)  # q_low = 2, beyond pi/2
    assert wrong.value == pytest.approx(UNIT * 0.5 - 5)  # q_low = 0, q_high = 1/2
    assert right.parts["insignificant_right"] == 2 and right.parts["significant_right"] == 3
    assert right.parts["explore"] == pytest.approx(UNIT) and "significant_right" not in wrong.parts
    # all tokens as both: 5 / 3 and 1 / 3
    every = significant_length(judge=by_sample(1.0, 0.0), significance=False, bonus=4.0, redundancy=1.0, explore=3.0)
    (right, wrong), _ = scored(every, group_of((5, 6, 5, 6), (5, 6)))
    assert right.value == pytest.approx(1.0)  # 5/3 is beyond pi/2
    assert wrong.value == pytest.approx((math.cos(1 / 3) - 1) + 3 / (math.pi / 2) / 3 - 3)
    # a reference without insignificant tokens counts as one of one
    (right, _), _ = scored(part, group_of((5, 6)))
    assert right.parts["insignificant_right"] == 2 and right.value == pytest.approx(1.0)


def test_a_scorer_may_say_what_is_significant():
    numbers = Block(lambda *, pieces: [len(p) for p in pieces])

    class Lengths(Reader):
        tokenizer = type("T", (), {"token_bytes": staticmethod(lambda ids: [b"x" * i for i in ids])})

    # token lengths 5 6 7 5 6 to [0, 1]: 0, 1/2, 1, 0, 1/2: two are below 1/2
    part = significant_length(judge=by_sample(1.0, 0.0), scorer=numbers)
    found = asyncio.run(score(part, [group_of((5, 7))], Lengths(), 5.0, state=[initial_state(part)]))["reward"]  # type: ignore[arg-type]
    assert next(iter(found.values())).parts["insignificant_right"] == 2


def test_the_weight_of_wrong_answers_follows_the_slope_of_accuracy():
    state: dict[str, Any] = {"accuracies": [0.1, 0.2, 0.3], "first_slope": None, "flat": 0, "k": None}
    state = after_slope(state, 10, 5.0, 2.5)
    assert state["k"] == pytest.approx(UNIT) and state["first_slope"] == pytest.approx(0.1)
    # 0.09 of 0.1 is 2.86, above 2.5; 0.05 is 1.59: flat once, then twice
    state = after_slope({**state, "accuracies": [0.0, 0.0, 0.09]}, 2, 5.0, 2.5)
    assert state["k"] == pytest.approx(0.9 * UNIT) and state["flat"] == 0
    for count in (1, 2):
        state = after_slope({**state, "accuracies": [0.0, 0.0, 0.05]}, 2, 5.0, 2.5)
        assert (state["flat"], state["k"]) == (count, -0.5 * count)
    assert after_slope({**state, "flat": 90}, 2, 5.0, 2.5)["k"] == pytest.approx(-2 * UNIT)
    assert after_slope({**state, "accuracies": [0.5]}, 2, 5.0, 2.5)["k"] == -1.0  # nothing to fit


def test_it_changes_only_where_it_is_dynamic_and_not_before_its_step():
    for dynamic, wants in ((True, [UNIT, UNIT, UNIT, -0.5]), (False, [UNIT] * 4)):
        part = significant_length(
            judge=by_sample(1.0, 0.0), dynamic=dynamic, delay_steps=3, slope_steps=2, plateau=0.5, ngram=2
        )
        state, seen = None, []
        for _ in range(4):
            (_, wrong), state = scored(part, group_of((5, 6)), state)
            seen.append(wrong.parts["explore"])
        assert seen == pytest.approx(wants)  # accuracy stays 1/2: the slope is 0
        assert state["accuracies"] == [0.5] * 3  # no more than a slope over two steps is of


def test_the_first_episode_asks_the_reference_too(letters):
    context = scripted_context(
        beside_reference(answers=2, shared=True),
        lambda text, key: "<answer>7</answer>",
        letters,
        model_roles=("policy", "ref"),
    )
    group = asyncio.run(play(context, [RolloutRequest(Task("t", "Q:", "7"), 3, key="k")]))[0]
    roles = [[(t.role, t.learn) for t in e.trajectories] for e in group.episodes]
    own = ("policy", "main")
    assert roles == [[own, (REFERENCE, None), (REFERENCE, None)], [own], [own]]
    assert [e.answer for e in group.episodes] == ["7"] * 3


def test_without_its_coefficients_it_is_ppo():
    # the reward is then the judge's own
    part = significant_length(judge=by_sample(1.0, 0.0), bonus=0.0, redundancy=0.0, explore=0.0)
    assert [s.value for s in scored(part, group_of((5, 6)))[0]] == [1.0, 0.0]
    plain, ours = of("ppo", groups=16, rollouts=8, minibatches=1, critic_epochs=4), of("bingo")
    assert ours.stage.credit == plain.stage.credit and ours.stage.updates == plain.stage.updates
    assert of("bingo", beta=0.1).stage.credit != plain.stage.credit


def test_what_cannot_be_compared_is_named():
    part = significant_length(judge=by_sample(1.0, 0.0))
    assert "no answers of the reference" in (scored(part, group_of())[0][0].error or "")
    assert "ngram" in (scored(significant_length(judge=by_sample(1.0, 0.0), ngram=0), group_of((5,)))[0][0].error or "")
    assert scored(significant_length(judge=by_sample(None, 0.0)), group_of((5, 6)))[0][0].value is None
