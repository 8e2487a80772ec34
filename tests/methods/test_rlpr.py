"""RLPR by hand: the probability of the reference answer as the reward, and the filter by the std of rewards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.answers import answered_group, paid

from selfteach.methods.rlpr import keep_spread, reference_probability
from selfteach.reward.answer import exact_match


def test_the_reference_is_scored_with_and_without_the_reasoning(tags, letters):
    # the reference " 71" is three bytes. After good thoughts .9 .6 .3: mean .6, product .162; without .2 each: .2 and
    # .008
    good, bare = np.log([0.9, 0.6, 0.3]), np.log([0.2, 0.2, 0.2])

    def say(text: str) -> np.ndarray:
        thought = text.split("think>")[1] if "think" in text else None
        return bare if thought is None else good if "a" in thought else np.log([0.1, 0.1, 0.1])

    texts = ["<think>a</think><answer> 5</answer>", "<think>b</think><answer> 71</answer>", "<think>a</think> 71"]
    for tokenizer in (tags, letters):  # a tag is a token, or many
        group, context, engine = answered_group(texts, "71", tokenizer, say)
        scores = paid(reference_probability(judge=exact_match()), group, context=context)
        assert [s.value for s in scores] == pytest.approx(
            [0.4, 0.0, 0.0]
        )  # .6 - .2; .1 - .2 is clipped to 0; no answer tag
        assert engine.asked == [
            ("q?<answer>", " 71"),
            ("q?<think>a</think><answer>", " 71"),
            ("q?<think>b</think><answer>", " 71"),
        ]
        assert scores[0].parts["probability"] == pytest.approx(0.6) and scores[0].parts["product"] == pytest.approx(
            0.162
        )
        assert (
            scores[1].parts["right"] == 1 and scores[0].parts["right"] == 0 and scores[2].parts["auc"] == 0.5
        )  # above one, below one
        assert group.episodes[0].cost["scored"] == 6  # and the three of the group
    by_product = paid(reference_probability(by="product"), group, context=context)
    assert by_product[0].value == pytest.approx(0.162 - 0.008)
    assert [s.value for s in paid(reference_probability(debias=False), group, context=context)] == pytest.approx(
        [0.6, 0.1, 0.0]
    )


def test_the_threshold_follows_the_moving_average_of_the_std():
    # two groups, std sqrt(1/2) and 0: mean s/2. Two warm-up steps keep all; then the threshold is half of that, which
    # the group of equal rewards fails.
    s, rows = math.sqrt(0.5), {"reward": [0, 1, 1, 1], "group": [0, 0, 1, 1], "warmup_steps": 2, "ema_decay": 0.75}
    state: dict[str, Any] = {"mean": 0.0, "steps": 0}
    kept = []
    for _ in range(3):
        columns, state = keep_spread(**rows, state=state)
        kept.append(columns["keep"].values.tolist())
    assert kept == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]
    assert state["steps"] == 3 and state["mean"] == pytest.approx(s / 2)
    _, state = keep_spread(
        reward=[0, 3], group=[0, 0], state=state, warmup_steps=2, ema_decay=0.75
    )  # 3/4 s/2 + 1/4 3 s
    assert state["mean"] == pytest.approx(0.75 * s / 2 + 0.25 * 3 * s)
    columns, again = keep_spread(
        reward=[math.nan, 1, 5], group=[0, 0, 1], state=state, warmup_steps=2
    )  # unknown stays unknown, a group of one is kept
    assert columns["keep"].values.tolist()[2] == 1 and np.isnan(columns["keep"].values[:2]).all() and again == state
    assert keep_spread(reward=[], group=[], state=state)[1] == state


def test_the_moving_average_begins_as_a_mean_over_six_steps_and_moves_by_a_hundredth():
    # std of (0, k) over n - 1 is k sqrt(1/2): of six steps with k = 1 to 6 the mean is 3.5 of these
    state: dict[str, Any] = {"mean": 0.0, "steps": 0}
    for k in range(1, 7):
        columns, state = keep_spread(reward=[0, k], group=[0, 0], state=state)
        assert columns["keep"].values.tolist() == [1, 1]
        assert state == {"mean": pytest.approx(math.sqrt(0.5) * (k + 1) / 2), "steps": k}
    # then half of 3.5 is asked for: 1.7 is too little, 1.8 enough
    columns, after = keep_spread(reward=[0, 1.7, 0, 1.8], group=[0, 0, 1, 1], state=state)
    assert columns["keep"].values.tolist() == [0, 0, 1, 1]
    assert after["mean"] == pytest.approx(math.sqrt(0.5) * (0.99 * 3.5 + 0.01 * 1.75))
