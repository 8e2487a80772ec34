"""MOTIF by hand: what is carried from round to round, which round is learned, and what it is worth."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.battery import of
from support.episodes import full_text, scripted_context

from selfteach.core import RolloutRequest, Task, block
from selfteach.core.scoring import score
from selfteach.loop.episode import play
from selfteach.methods.motif import mean_outcome

SUM = Task("t", "2 + 3 + 4 =\n", ("9",))
FIRST = "<think> 2 + 3 = 5.</think><answer> 5 4</answer>"


def played(tags: Any, reply: Any, decode: bool = False, **args: Any) -> tuple[Any, Any, Any]:
    method = of("motif", **args)
    program = method.decode["main"] if decode else method.stage.programs["main"]
    context = scripted_context(program, reply, tags)
    (group,) = asyncio.run(play(context, [RolloutRequest(SUM, 1, key="k")]))
    return method.stage, context, group


def rewarded(stage: Any, context: Any, group: Any) -> Any:
    found = asyncio.run(score(stage.reward[0], [group], context))["reward"]
    (leaf,) = [t.leaf for t in group.episodes[0].trajectories if t.learn]
    return found[leaf]


def in_turn(*last: str) -> Any:
    """A policy that answers 5 4, then 5 4 once more, then these in the last rounds."""
    left = list(last)

    def reply(text: str, rng_key: int) -> str:
        return f"<think> x</think><answer> {left.pop(0)}</answer>" if "final round" in text else FIRST

    return reply


def test_a_round_begins_from_the_question_and_the_answer_of_the_one_before(tags):
    _, _, group = played(tags, in_turn("9"), decode=True)
    (found,) = group.episodes
    prompts = [full_text(found, tags, n).split("<think>")[0] for n in range(3)]
    assert prompts == [
        SUM.prompt,
        f'{SUM.prompt}Progress in round 1: "5 4"\n',
        f'{SUM.prompt}Progress in round 2: "5 4" Current round is the final round. Provide a final answer.\n',
    ]
    assert found.answer == "9" and [t.learn for t in found.trajectories] == [None, None, "main"]


@pytest.mark.parametrize(("rounds", "learned"), [(1, ["main"]), (2, [None, "main"])])
def test_where_rounds_are_decoded_the_last_is_the_answer(tags, rounds, learned):
    _, _, group = played(tags, in_turn("9"), decode=True, rounds=rounds)
    assert [t.learn for t in group.episodes[0].trajectories] == learned
    assert group.episodes[0].answer == ("5 4" if rounds == 1 else "9")


def test_only_the_first_round_is_learned_and_it_is_worth_the_mean_of_its_continuations(tags):
    stage, context, group = played(tags, in_turn("9", "8", "9", "9"))
    (found,) = group.episodes
    roles = [(t.role, t.learn) for t in found.trajectories]
    assert roles[0] == ("policy", "main") and sorted(r for r, _ in roles[1:]) == ["between"] * 4 + ["last"] * 4
    assert {learn for _, learn in roles[1:]} == {None} and found.answer == "5 4"
    reward = rewarded(stage, context, group)
    assert reward.value == 2 * 0.75 + 1  # three of four are right; the form is kept
    assert reward.parts["right"] == 0.75 and reward.parts["progress"] == 2.0
    later = [n for n, t in enumerate(found.trajectories) if t.role == "last"]
    samplings = {(s.temperature, s.top_p) for s in (sampling_of(found, n) for n in later)}
    assert samplings == {(0.8, 0.95)} and (sampling_of(found, 0).temperature, sampling_of(found, 0).top_p) == (1.0, 1.0)


def sampling_of(episode: Any, n: int) -> Any:
    tree = episode.tree
    return tree.samplings[tree.sampling[episode.trajectories[n].leaf.node]]


def test_continuations_are_sampled_as_they_are_told_to(tags):
    _, _, group = played(tags, in_turn("9"), rounds=2, continuations=1, temperature=0.5, top_p=0.9)
    sampling = sampling_of(group.episodes[0], 1)
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.9)


def test_the_weights_of_outcome_and_form(tags):
    stage, context, group = played(tags, in_turn("9", "8"), continuations=2, outcome=1.0, format=0.5)
    assert rewarded(stage, context, group).value == 1.0 * 0.5 + 0.5
    bare = played(tags, lambda text, rng_key: "<answer> 9</answer>", continuations=1)
    assert rewarded(*bare).value == 2.0  # right in the end, and without the form


@block
def nine_or_nothing(*, answer: Any) -> float:
    """1 for nine; an error for eight."""
    if answer == "8":
        raise ValueError("eight")
    return float(answer == "9")


@pytest.mark.parametrize(("last", "share"), [(("9", "8", "5", "9"), 2 / 3), (("8",) * 4, None)])
def test_a_continuation_that_cannot_be_judged_does_not_count(tags, last, share):
    _, context, group = played(tags, in_turn(*last))
    (found,) = asyncio.run(score(mean_outcome(judge=nine_or_nothing()), [group], context))["reward"].values()
    assert found.value == pytest.approx(share) and ("right" in found.parts) == (share is not None)
    assert bool(found.error) == (share is None)


@pytest.mark.parametrize(("first", "value"), [("9", 3.0), ("5 4", 1.0)])
def test_without_continuations_a_round_is_worth_its_own_answer(tags, first, value):
    replies = [FIRST.replace("5 4", first)]
    for args in ({"simulated": False}, {"rounds": 1}):
        stage, context, group = played(tags, list(replies), **args)
        assert len(group.episodes[0].trajectories) == 1 and rewarded(stage, context, group).value == value


def test_what_a_cut_round_said_is_carried_on_whole(tags):
    _, _, group = played(tags, ["<think> 2 + 3", "<answer> 9</answer>"], decode=True, rounds=2)
    assert full_text(group.episodes[0], tags).startswith(f'{SUM.prompt}Progress in round 1: "<think> 2 + 3" Current')
