"""SCoRe: the rewards of two attempts by hand, and the terms of its two stages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.battery import of
from support.episodes import full_text, scripted_context

from selfteach.core import Ref, RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.credit.composers import per_trajectory
from selfteach.loop.episode import play
from selfteach.methods.score import center_by_turn, progress, two_attempts


def played(context: Any, task: Task, n: int = 1) -> Any:
    return asyncio.run(play(context, [RolloutRequest(task, n, key="k")]))[0]


def scored(reward: Any, group: Any, context: Any) -> Any:
    return asyncio.run(score(reward, [group], context))


def test_the_bonus_for_progress_goes_to_the_second_attempt(tags):
    def reply(text: str, rng_key: int) -> str:
        return "<answer>7</answer>" if "error" in text else "<answer>5</answer>"

    for gold, want, gain in (
        ("7", [0.0, 1 + 10 * (1 - 0)], 1),
        ("5", [1.0, 0 + 10 * (0 - 1)], -1),
        ("9", [0.0, 0.0], 0),
    ):
        context = scripted_context(two_attempts(), reply, tags)
        group = played(context, Task("t", "Q: ", gold))
        (episode,) = group.episodes
        scores = scored(progress(), group, context)["reward"]
        nodes = [n for n, _ in episode.tree.path(episode.trajectories[0].leaf.node) if episode.tree.sampling[n] >= 0]
        assert (
            episode.answer == "7"
            and [scores[at].value for at in sorted(scores)] == want
            and [at.node for at in sorted(scores)] == nodes
        )
        assert scored(progress(first=0.0, alpha=0.0), group, context)["reward"][Ref(episode.id, nodes[0])].value == 0.0
        leaf = scores[episode.trajectories[0].leaf]
        assert (leaf.parts["gain"], leaf.parts["fixed"], leaf.parts["broken"]) == (gain, gain == 1, gain == -1)
        (example,) = per_trajectory(loss_stream=("first", "second"), steps=("reward",))(
            groups=[group._replace(scores={"reward": scores})]
        )
        assert [s.learn for s in example.segments if s.learn] == ["first", "second"] and example.given["reward"][
            1
        ].tolist() == want


def test_the_baseline_of_a_turn_is_of_turns_of_the_same_number():
    # Siblings with 2, 2 and 1 turns. First turns 0, 1, 1: 0 - 1, 1 - 1/2, 1 - 1/2. Second turns 11, -9: 20, -20.
    given = {"reward": [0.0, 11.0, 1.0, -9.0, 1.0], "seq": [0, 0, 1, 1, 2], "group": [0] * 5}
    assert center_by_turn(**given)["adv"].values.tolist() == [-1, 20, 0.5, -20, 0.5]
    # gamma 1: first turns are worth 11, -8, 1: 11 + 3.5, -8 - 6, 1 - 1.5
    assert center_by_turn(**given, gamma=1.0)["adv"].values == pytest.approx([14.5, 20, -14, -20, -0.5])


def test_the_first_stage_has_a_further_kl_on_the_first_attempt():
    one, two = of("score").stages
    kl = [(t.on, t.coef) for t in one.updates[0].terms if t.fn.name == "kl"]
    assert kl == [(("first", "second"), 0.01), (("first",), 0.1)] and [t.on for t in two.updates[0].terms][1:] == [
        ("first", "second")
    ]
    assert [{k: v for k, v in s.reward[0].args.items() if k != "judge"} for s in (one, two)] == [
        {"first": 0.0, "alpha": 0.0},
        {"alpha": 10.0},
    ]
    assert len(of("score", stage_one=False).stages) == 1


def test_the_question_is_repeated_after_the_instruction_unless_told_otherwise(tags):
    replies = ["<answer>5</answer>", "<answer>7</answer>"]
    for hyper_parameters, times in (({}, 2), ({"repeat_question": True}, 2), ({"repeat_question": False}, 1)):
        table = scripted_context(two_attempts(**hyper_parameters), replies, tags)
        (episode,) = played(table, Task("t", "what is 3 + 4?\n", "7")).episodes
        assert full_text(episode, tags).count("what is 3 + 4?") == times and episode.answer == "7"
