"""DeepDive by hand: all or nothing, what repeated queries cost, and which of several answers is taken."""

from __future__ import annotations

import pytest
from support.agents import ANN, ULM, played, scored
from support.battery import of

from selfteach.core import RolloutRequest
from selfteach.methods.deepdive import alike, several_answers

THINK, RIGHT, WRONG = "<think>so.</think>", "<answer> Ulm</answer>", "<answer>x</answer>"
ASK, AGAIN, OTHER = (f"<search>{q}</search>" for q in ("home of Ann", "Ann home", "river of Ulm"))


def value(tags, replies, **args):
    stage = of("deepdive", **args).stage
    return scored(stage.reward[0], stage.programs["main"], replies, tags)


@pytest.mark.parametrize(
    "replies,strict,lenient",
    [
        ([THINK + ASK, THINK + RIGHT], 1.0, 1.0),
        ([THINK + ASK, THINK + WRONG], 0.0, 0.0),
        ([THINK + ASK, RIGHT], 0.0, 1.0),  # an answer without a thought
        (["<think>so." + ASK, THINK + RIGHT], 0.0, 1.0),  # a thought left open
        ([THINK + RIGHT], 1.0, 1.0),
    ],
)
def test_all_or_nothing(tags, replies, strict, lenient):
    assert value(tags, replies).value == strict
    assert value(tags, replies, strict=False).value == lenient


def test_an_episode_ends_at_its_first_turn_of_wrong_form(tags):
    program = of("deepdive").stage.programs["main"]
    _, group = played(program, [THINK + ASK, "nothing", THINK + RIGHT], tags)
    assert group.episodes[0].answer is None and group.episodes[0].cost["turns"] == 2


def test_queries_that_are_alike_cost(tags):
    again = [THINK + ASK, THINK + AGAIN, THINK + RIGHT]
    assert value(tags, again, redundancy=0.5).value == pytest.approx(1 - 0.5 * 2 / 3)  # of home, of, ann two are shared
    other = [THINK + ASK, THINK + OTHER, THINK + RIGHT]
    assert value(tags, other, redundancy=0.5).value == pytest.approx(1 - 0.5 * 1 / 5)  # `of`, of five words
    assert value(tags, again).value == 1.0 and value(tags, [THINK + WRONG], redundancy=0.5).value == 0.0
    wrong = [THINK + ASK, THINK + AGAIN, THINK + WRONG]
    assert value(tags, wrong, redundancy=0.5).value == pytest.approx(-0.5 * 2 / 3)  # wrong answers pay as well
    assert alike(["x", "x", "y"]) == pytest.approx(1 / 3)  # one pair of three


@pytest.mark.parametrize(
    "choose,ends,answer",
    [
        ("fewest", [RIGHT, "<answer> Rom</answer>", "<answer> Rom</answer>"], "Ulm"),  # all without a call: the first
        ("vote", [RIGHT, "<answer> Rom</answer>", "<answer> Rom</answer>"], "Rom"),
        ("vote", [RIGHT, "nothing", WRONG], "Ulm"),  # as many votes: the first
        ("fewest", ["nothing"] * 3, None),
    ],
)
def test_which_of_several_answers_is_taken(tags, choose, ends, answer):
    program = several_answers(candidates=3, choose=choose)
    _, group = played(program, ends, tags, request=RolloutRequest(ANN, key="t"))
    assert group.episodes[0].answer == answer and len(group.episodes[0].trajectories) == 3


def test_the_answer_of_fewest_calls_is_taken(tags):
    program = several_answers(candidates=2)
    # the first asks, the second answers at once; then the first answers
    _, group = played(program, [ASK, "<answer> Rom</answer>", RIGHT], tags, lambda query: ULM)
    assert group.episodes[0].answer == "Rom" and group.episodes[0].cost["calls"] == 1
