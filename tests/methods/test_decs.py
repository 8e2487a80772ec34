"""DECS by hand: the necessary prefix, token rewards, normalisation by position, and the share of easy prompts."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.battery import of, same
from support.episodes import scripted_context

from selfteach.core import RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.credit.advantages import norm
from selfteach.loop.episode import play
from selfteach.methods.decs import (
    keep_share_of_easy,
    necessary_prefix,
    necessary_tokens,
    norm_by_position,
    pay_necessary,
)
from selfteach.rollout.single import single


def spelled(text: str) -> list[bytes]:
    return [c.encode() for c in text]


def test_the_chunk_that_first_states_the_answer_ends_what_was_necessary():
    thought = " we start with 3. then 3 + 8 = 11. so the answer is 11. wait, 8 + 3 = 11."
    needed, thinking = necessary_tokens(spelled(thought + "</think><answer> 11</answer>"), ["11"])
    assert thinking == len(thought) and thought[:needed] == " we start with 3. then 3 + 8 = 11. "
    assert necessary_tokens(spelled("2 + 1 = 3. so = 31. so 3.5 is 3.5</think>"), ["31"])[0] == len(
        "2 + 1 = 3. so = 31. "
    )
    assert necessary_tokens(spelled("is 3.5 so 33 = 33</think>"), ["3"]) == (
        17,
        17,
    )  # never stated: all of it was necessary
    assert necessary_tokens(spelled("= 4 Wait no<answer>4"), ["4"]) == (4, 11) and necessary_tokens([], ["4"]) == (0, 0)
    assert necessary_tokens(spelled("= 4 so waiting"), ["4"], reflection_words=("wait",)) == (
        14,
        14,
    )  # whole words only


def test_the_reward_counts_sampled_tokens(tags):
    replies = ["<think>=7 so 7</think><answer>7</answer>", "<think>=8</think><answer>8</answer>"]
    context = scripted_context(single(), replies, tags)
    group = asyncio.run(play(context, [RolloutRequest(Task("t", "Q: ", "7"), 2, key="k")]))[0]
    found = asyncio.run(score(necessary_prefix(), [group], context))
    right, wrong = (e.trajectories[0].leaf for e in group.episodes)
    # <think> and each letter are a token: <think> = 7 _ | s o _ 7
    assert [found[c][right].value for c in ("reward", "necessary", "thinking")] == [1.0, 4.0, 8.0] and found["reward"][
        right
    ].parts["necessary"] == 0.5
    assert [found[c][wrong].value for c in ("reward", "necessary", "thinking")] == [
        0.0,
        3.0,
        3.0,
    ] and "necessary" not in found["reward"][wrong].parts


def test_what_comes_after_the_answer_is_pushed_down_where_a_sibling_still_thinks():
    # Both right. The first (4 tokens) found it after 1 of 3 thinking tokens, the second (6) after 4 of 5. Of 8 tokens
    # that may be sampled these are 1/2 and 3/4: 1.1 - 0.1 / 2, 1.1 - 0.1 * 3/4.
    given = {
        "reward": np.ones(2),
        "necessary": [1.0, 4.0],
        "thinking": [3.0, 5.0],
        "seq": np.repeat([0, 1], [4, 6]),
        "group": np.array([0, 0]),
    }
    group = given.pop("group")
    paid = pay_necessary(**given, limit=8)["token_reward"].values
    short, long = 1.05, 1.025
    assert pay_necessary(**given, limit=2)["token_reward"].values[1] == pytest.approx(1.0)  # r0 beyond the limit too
    assert paid == pytest.approx([1.1, short, short, 1.1, 1.1, 1.1, 1.1, 1.1, long, 1.1])
    adv = norm_by_position(token_reward=paid, seq=given["seq"], group=group, eps=0.0)["adv"].values
    # Of two that differ, each is 1 / sqrt(2) of a standard deviation off. The shorter answer's first redundant token
    # falls, which a reward for being shorter than its sibling would raise; past its end it counts with 1.1, so the
    # longer one's redundant token falls too.
    half = 1 / np.sqrt(2)
    assert adv == pytest.approx([0, -half, -half, 0, 0, half, half, 0, -half, 0])
    apart = norm_by_position(token_reward=paid, seq=given["seq"], group=group, eps=0.0, finished=False)["adv"].values
    assert apart == pytest.approx(
        [0, -half, -half, 0, 0, half, half, 0, 0, 0]
    )  # alone at its position: nothing to compare with


def test_positions_of_one_price_are_the_usual_comparison():
    rng = np.random.default_rng(3)
    lengths, group, reward = rng.integers(1, 8, 12), np.arange(12) % 3, rng.random(12)
    seq = np.repeat(np.arange(12), lengths)
    got = norm_by_position(token_reward=reward[seq], seq=seq, group=group)["adv"].values
    assert got == pytest.approx(norm(reward=reward, group=group)["adv"].values[seq], abs=1e-9)
    unknown = norm_by_position(token_reward=np.where(seq == 0, np.nan, reward[seq]), seq=seq, group=group)["adv"].values
    assert (np.isnan(unknown) == (group == 0)[seq]).all()


def test_the_share_of_easy_prompts_follows_what_is_left_to_cut():
    # Four groups of two; 0 and 2 are easy, 1 is mixed, 3 all wrong. Needed over right answers: (1/2 + 1/2 + 1 + 1/4 +
    # 1/4) / 5 = 1/2.
    given = {
        "reward": [1, 1, 1, 0, 1, 1, 0, 0],
        "necessary": [2, 2, 4, 4, 1, 1, 4, 4],
        "thinking": [4] * 8,
        "group": [0, 0, 1, 1, 2, 2, 3, 3],
    }
    keep, state = keep_share_of_easy(**given, state={"share": None, "needed": None})
    assert keep["keep"].values.tolist() == [1] * 8 and state == {"share": 0.5, "needed": 0.5}
    # Before, 0.9 was needed: 0.4 + 0.5 (0.5 - 0.9) = 0.2 of four groups is one; group 2 is the more redundant, so it
    # stays and 0 goes.
    keep, state = keep_share_of_easy(**given, state={"share": 0.4, "needed": 0.9}, rate=0.5)
    assert keep["keep"].values.tolist() == [0, 0, 1, 1, 1, 1, 1, 1] and state["share"] == pytest.approx(0.2)
    # Less redundancy brings them back, to no more than there are.
    assert keep_share_of_easy(**given, state={"share": 0.4, "needed": 0.0}, rate=0.5)[1]["share"] == 0.5
    none = {**given, "reward": [0] * 8}
    assert keep_share_of_easy(**none, state={"share": 0.3, "needed": 0.4})[1] == {"share": 0.3, "needed": 0.4}


def test_decs_with_one_price_is_grpo_with_a_token_mean():
    plain = of("grpo").replace(updates=of("decs").stage.updates)
    same(
        of("decs", necessary_reward=1.0, redundant_reward=1.0, rate=None), plain, 1e-5
    )  # 1e-6 is added to the standard deviation of what is paid
    with pytest.raises(AssertionError):
        same(of("decs", rate=None, limit=4), plain, 1e-3)


def test_thinking_of_one_token_is_all_necessary_and_of_none_has_no_share():
    rows = {"reward": [1, 1], "group": [0, 0]}
    empty = {"share": None, "needed": None}
    _, state = keep_share_of_easy(**rows, necessary=[1, 1], thinking=[1, 1], state=empty)
    assert state == {"share": 1.0, "needed": 1.0}
    _, state = keep_share_of_easy(**rows, necessary=[0, 1], thinking=[0, 2], state=empty)
    assert state == {"share": 1.0, "needed": 0.25}  # (0 + 1/2) / 2
    # 0.5 + 0.2 (0.25 - 0.75): a fifth unless told otherwise
    _, state = keep_share_of_easy(**rows, necessary=[0, 1], thinking=[0, 2], state={"share": 0.5, "needed": 0.75})
    assert state["share"] == pytest.approx(0.4)
