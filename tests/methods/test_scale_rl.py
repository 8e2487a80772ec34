"""ScaleRL by hand: the loss with each choice and without it, which questions are asked, thoughts that are ended."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import full_text, scripted_context, single_turn_group, spans

from selfteach.core import BadValue, History, RolloutRequest, Task
from selfteach.loop.episode import play
from selfteach.methods.scale_rl import unsolved

# Two groups: one right of two, one right of two; a third of equal rewards. Batch std over 4 rewards 1 0 1 0, or over 6.
GROUPS = [
    single_turn_group([(5, 5, 5), (6,)], [1.0, 0.0], key="a"),
    single_turn_group([(5,), (6,)], [1.0, 0.0], key="b"),
]
EQUAL = single_turn_group([(5,), (6,)], [1.0, 1.0], key="c")
STD = math.sqrt(1 / 3)  # of 1 0 1 0, over n - 1


def test_the_mean_is_over_prompts_and_the_deviation_that_of_the_batch():
    # old_logp is -1: at live -1 every weight is 1. Group a has 4 tokens, b 2; A = 0.5 / STD for right ones.
    got = token_gradient(of("scale_rl"), GROUPS, [-1.0] * 6)
    a = 0.5 / STD
    assert got == pytest.approx([-a / 8, -a / 8, -a / 8, a / 8, -a / 4, a / 4], rel=1e-4)
    answers = token_gradient(of("scale_rl", mean="answer"), GROUPS, [-1.0] * 6)
    assert answers == pytest.approx([-a / 12, -a / 12, -a / 12, a / 4, -a / 4, a / 4], rel=1e-4)
    tokens = token_gradient(of("scale_rl", mean="token"), GROUPS, [-1.0] * 6)
    assert tokens == pytest.approx([-a / 6, -a / 6, -a / 6, a / 6, -a / 6, a / 6], rel=1e-4)
    own = token_gradient(of("scale_rl", std="group"), GROUPS, [-1.0] * 6)
    assert own[0] == pytest.approx(-(0.5 / math.sqrt(0.5)) / 8, rel=1e-4)


def test_groups_of_equal_rewards_count_in_no_mean():
    a = 0.5 / STD
    dropped = token_gradient(of("scale_rl"), [*GROUPS, EQUAL], [-1.0] * 6)
    assert dropped == pytest.approx([-a / 8, -a / 8, -a / 8, a / 8, -a / 4, a / 4], rel=1e-4)
    kept = token_gradient(of("scale_rl", drop_equal=False), [*GROUPS, EQUAL], [-1.0] * 8)
    b = 0.5 / math.sqrt(4 / 15)  # rewards 1 0 1 0 1 1: mean 2/3, variance (4 / 9 + 8 / 9) / 5
    assert kept == pytest.approx([-b / 12, -b / 12, -b / 12, b / 12, -b / 6, b / 6, 0, 0], rel=1e-4)


def test_weights_are_cut_and_no_gradient_is_lost():
    live = [-1.0 + math.log(9), -1.0, -1.0, -1.0, -1.0 + math.log(2), -1.0]
    a = 0.5 / STD
    got = token_gradient(of("scale_rl"), GROUPS, live)
    assert got == pytest.approx([-4 * a / 8, -a / 8, -a / 8, a / 8, -2 * a / 4, a / 4], rel=1e-4)
    assert token_gradient(of("scale_rl", most=9.0), GROUPS, live)[0] == pytest.approx(-9 * a / 8, rel=1e-4)
    clipped = token_gradient(of("scale_rl", loss="clip"), GROUPS, live)
    assert clipped[0] == clipped[4] == 0.0  # above 1.28 a token loses its gradient
    wide = token_gradient(of("scale_rl", loss="clip", high=1.5), GROUPS, live)
    assert wide[4] == pytest.approx(-2 * a / 4, rel=1e-4)
    low = [-1.0 + math.log(0.7)] * 6
    assert token_gradient(of("scale_rl", loss="clip"), GROUPS, low)[3] == 0.0  # a wrong one below 0.8
    assert token_gradient(of("scale_rl", loss="clip", low=0.4), GROUPS, low)[3] > 0.0


class Numbers:
    """A source whose tasks are their numbers."""

    test = ()

    @staticmethod
    def train(i: int):
        return Task(str(i), "p")


def asked(
    history: History, state: int = 0, n: int = 4, told: dict[str, float] | None = None, **options: float
) -> tuple[list[str], int]:
    requests, state = unsolved(
        n=n,
        rollouts=2,
        finished_rounds=[],
        source=Numbers(),
        seed=0,
        history=history,
        log_metrics=({} if told is None else told).update,
        state=state,
        **options,  # type: ignore[arg-type]
    )
    return [r.task.id for r in requests], state


def test_what_is_solved_is_not_asked_again():
    history = History()
    first, state = asked(history, questions=4)
    assert len(set(first)) == 4 and state == 4
    history.tasks = {name: {"reward": value} for name, value in zip(first, (0.0, 0.5, 0.9, 1.0), strict=True)}
    told: dict[str, float] = {}
    again, _ = asked(history, state, questions=4, told=told)
    assert told == {"success": pytest.approx(0.25), "visited": pytest.approx(0.6)}
    assert set(again) == set(first[:2]) and len(again) == 4  # two laps over the two that are left
    easier, _ = asked(history, state, questions=4, solved=0.5)
    assert set(easier) == {first[0]}
    every, _ = asked(history, state, questions=4, solved=1.01)
    assert set(every) == set(first)
    history.tasks = {name: {"reward": 1.0} for name in first}
    assert set(asked(history, state, questions=4)[0]) <= set(first)  # all are solved: all are asked
    assert asked(history, state, n=1, questions=4)[1] == state + 9  # after two laps that had none


def test_choices_that_there_are_not():
    with pytest.raises(BadValue, match="mean must be one of prompt, answer, token"):
        of("scale_rl", mean="group")
    with pytest.raises(BadValue, match="loss must be one of cispo, clip"):
        of("scale_rl", loss="ppo")
    assert of("scale_rl", questions=None).stage.select.name == "uniform"
    assert of("scale_rl").stage.sync == 8
    assert np.isfinite(of("scale_rl", epochs=2, minibatches=2).stage.updates[0].epochs)


def test_thoughts_that_are_too_long_are_ended_by_the_phrase_which_is_not_learned(tags: Any):
    def reply(text: str, rng_key: int) -> str:
        return "<answer>7</answer>" if text.endswith("</think>") else "<think>hm hm hm hm hm hm"

    program = of("scale_rl", thinking=6, phrase="</think>").stage.programs["main"]
    context = scripted_context(program, reply, tags)
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "Q: ", ("7",)), 1, key="k")]))
    (episode,) = group.episodes
    assert episode.answer == "7" and "</think><answer>7</answer>" in full_text(episode, tags)
    assert spans(episode, tags, "interruption") == "</think>"
    outside = [span == "interruption" for span in np.array(episode.tree.spans)[episode.tree.span]]
    assert not episode.tree.action_mask[outside].any()
    assert of("scale_rl").stage.programs["main"].name == "single"
