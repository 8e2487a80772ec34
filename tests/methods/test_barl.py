"""BARL: beliefs and values of hypotheses by hand, at the places of an answer's steps."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import scripted_context, single_turn_group

from selfteach.core import Task
from selfteach.core.scoring import score
from selfteach.core.task import RolloutRequest
from selfteach.loop.episode import play
from selfteach.methods.barl import beliefs, hypothesis_values, of_step, values_under, written_values
from selfteach.rollout.single import single
from selfteach.tasks.triplets import holds_answer

# The probability of each answer after so many steps; the accepted one is 2. What says 7 believes in 7 all the way.
RIGHT, WRONG = {"2": (0.2, 0.4, 0.9), "7": (0.6, 0.6, 0.1)}, {"2": (0.2, 0.1), "7": (0.6, 0.9)}


def test_a_hypothesis_that_does_not_fit_the_rewards_is_believed_less():
    p = np.array([[0.2, 0.6], [0.4, 0.6], [0.9, 0.1]])
    # True rewards 0.2, 0.5; under the other 0, -0.5: off by 0.2, then by 1.2
    w = beliefs(p, 2.0)
    assert w[:, 0] == pytest.approx([0.25, 0.4 / (0.4 + 0.6 * math.exp(-0.4)), 0.9 / (0.9 + 0.1 * math.exp(-2.4))])
    assert beliefs(p, 0.0)[:, 0] == pytest.approx([0.25, 0.4, 0.9])
    assert values_under(p).ravel() == pytest.approx([0.7, -0.5, 0.5, -0.5, 0.0, 0.0])


def test_each_token_has_the_value_of_its_step():
    # Answers of three tokens (steps of 2 and 1), of one without known steps, and of two that end after the last step.
    steps = {"step_value": [np.nan, 0.5, 3.0, np.nan, 5.0, np.nan], "seq": [0, 0, 0, 1, 2, 2]}
    assert of_step(reward=[1.0, 0.25, 2.0], **steps)["adv"].values.tolist() == [0.5, 0.5, 3, 0.25, 5, 2]
    added = of_step(reward=[1.0, 0.25, 2.0], outcome=True, **steps)["adv"].values.tolist()
    assert added == [1.5, 1.5, 4, 0.25, 7, 2], "whole at every step"


def test_advantages_are_scaled_over_all_tokens_of_the_batch():
    # Two groups of one answer each, of three tokens and of one, rewards 0 and 1: mean 1/4, variance 3/16; a mean over
    # sequences would be 1/2, and a group's leave nothing. Every sequence weighs 1/2.
    groups = [single_turn_group([(5, 6, 7)], [0.0], "a"), single_turn_group([(8,)], [1.0], "b")]
    low, high = 0.25 / (3 / 16) ** 0.5, -0.75 / (3 / 16) ** 0.5
    got = token_gradient(of("barl"), groups, [-1.0] * 4)
    assert got == pytest.approx([low / 6] * 3 + [high / 2])


class Believer:
    """Of the scripted engine, with probabilities of answers after each number of steps."""

    def __init__(self, engine: Any, tokenizer: Any) -> None:
        self.engine, self.tokenizer = engine, tokenizer

    async def score(self, model_role, context, tokens, want=("logp",)):
        text, answer = self.tokenizer.decode(context), self.tokenizer.decode(tokens).strip()
        assert text.endswith("</think><answer>") and answer.endswith("</answer>") and want == ("raw_logp",)
        table = WRONG if "qq" in text else RIGHT
        p = table[answer.removesuffix("</answer>")][text.count(".")]
        # of all tokens together p^n, so that p is the geometric mean of theirs
        return {"raw_logp": np.array([len(tokens) * math.log(p)] + [0.0] * (len(tokens) - 1))}


def values(letters, **options: Any):
    replies = {"one": "<think> a. b. </think><answer> 2</answer>", "two": "bad. </think><answer> 7</answer>"}
    context = scripted_context(single(), lambda text, at: replies["two" if text.count("q") > 1 else "one"], letters)
    requests = [RolloutRequest(Task("t", q, ("2",)), 1, key="k") for q in ("q", "qq")]
    one, two = asyncio.run(play(context, requests))
    group = one._replace(episodes=[*one.episodes, *two.episodes])
    context.engine = Believer(context.engine, letters)  # type: ignore[assignment]
    return group, asyncio.run(score(hypothesis_values(**options), [group], context))


def test_steps_of_an_answer_are_valued_where_they_end(letters):
    group, got = values(letters, hypotheses=5, kappa=0.0)
    right, wrong = (e.trajectories[0].leaf for e in group.episodes)
    # Weights without correction p / sum p: 0.25, 0.4, 0.9; progress of 2: 0.7, 0.5, 0; of 7: -0.5, -0.5, 0.
    by_place = {at.offset: s.value for at, s in got["step_value"].items() if at.episode == right.episode}
    assert list(by_place.values()) == pytest.approx([0.25 * 0.7 - 0.375, 0.4 * 0.5 - 0.3, 0.0])
    # The wrong answer: p = 0.2, 0.6, then 0.1, 0.9; progress of 2: -0.1, 0; of 7, which it gives: 0.3, 0.
    other = [s.value for at, s in got["step_value"].items() if at.episode == wrong.episode]
    assert other == pytest.approx([0.25 * -0.1 + 0.75 * 0.3, 0.0]), "nothing for being a hypothesis"
    assert (got["reward"][right].value, got["reward"][wrong].value) == (1, 0)
    parts = got["reward"][right].parts
    assert (parts["belief_first"], parts["belief_last"]) == pytest.approx((0.25, 0.9))
    size = group.episodes[0].tree.size(right.node)
    assert max(by_place) == size and len(by_place) == 3


def test_what_can_be_switched_off(letters):
    # One hypothesis: progress towards what is right alone; without progress rewards alone are left (`of_step`).
    _, alone = values(letters, hypotheses=0, kappa=1.0)
    assert [s.value for s in alone["step_value"].values()] == pytest.approx([0.7, 0.5, 0.0, -0.1, 0.0])
    _, plain = values(letters, progress=False)
    assert [s.value for s in plain["step_value"].values()] == [0] * 5
    assert (
        of("barl").stage.credit[1].args == {"outcome": True}
        and not of("barl", known="x").stage.credit[1].args["outcome"]
    )
    assert of("barl", kappa=0.5).stage.reward[0].hyper_parameters["kappa"] == 0.5


def written(letters, kappa: float, answer: str = "0 0"):
    """Of ` 1 1 0 0`, whose tokens are its characters, where one of `0 0` and `1 1` is paid as soon as it is written."""
    context = scripted_context(single(), lambda text, at: " 1 1 0 0", letters)
    task = Task("t", "q", (answer,), tags={"known": ("1 1", "0 0")}, verifier=holds_answer())
    (group,) = asyncio.run(play(context, [RolloutRequest(task, 1, key="k")]))
    got = asyncio.run(score(written_values(known="known", kappa=kappa), [group], context))
    return [s.value for s in got.get("step_value", {}).values()], got


@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_what_was_written_in_vain_is_no_longer_worth_writing(letters, kappa):
    values, got = written(letters, kappa)
    # The reward is that of a hypothesis, and not added. Before four characters both may be right, and both are going to
    # be written: 1/2 + 1/2. After these `1 1` was not paid, which is off by 1 from what it would have been: weights 1
    # and e^-kappa, and only `0 0` is still to come.
    left = 1 / (1 + math.exp(-kappa))
    assert values == pytest.approx([1.0] * 4 + [left] * 4 + [0.0]), "at the end of the text nothing is to come"
    (verdict,) = got["reward"].values()
    # by then `0 0` was paid, which `1 1` would not have foreseen either
    assert verdict.parts["belief_last"] == pytest.approx(1 / (1 + math.exp(-2 * kappa)))
    assert (verdict.value, verdict.parts["tried"]) == (1, 2)


def test_hypotheses_without_what_is_right_say_so(letters):
    _, got = written(letters, 1.0, "2 2")
    (verdict,) = got["reward"].values()
    assert verdict.value is None and "no tag 'known' with its answer among other texts" in str(verdict.error)
    assert of("barl", known="hypotheses").stage.reward[0].name == "written_values"
