"""SubSearch by hand: sub-queries are answered each by itself, and how they divide a question is measured."""

from __future__ import annotations

import asyncio

import pytest
from support.agents import played
from support.battery import of

from selfteach.core import Ref, RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.methods.subsearch import answerability, divided, splittability
from selfteach.reward.agent_record import Search

HOME, GUILD = "the home of Ann is Ulm.", "the guild of Bob is Kraft."
FOUND = {"home of Ann": HOME, "guild of Bob": GUILD}
TASK = Task(
    "t",
    "question: what is the home of Ann, and the guild of Bob?\n",
    ("Ulm and Kraft",),
    tags={"keywords": (("home of Ann",), ("guild of Bob",))},
)
THINK, BOTH = "<think>together.</think>", "<search>home of Ann ## guild of Bob</search>"
RIGHT, WRONG = "<think>so.</think><answer> Ulm and Kraft</answer>", "<think>so.</think><answer> x</answer>"


def value(tags, replies, **args):
    stage = of("subsearch", **args).stage
    engine = lambda query: FOUND.get(query, "nothing found.")  # noqa: E731
    context, group = played(stage.programs["main"], replies, tags, engine, RolloutRequest(TASK, key="t"))
    (found,) = asyncio.run(score(stage.reward[0], [group], context))["reward"].values()
    return found, group.episodes[0], context


def test_each_sub_query_is_answered_by_itself(tags):
    _, episode, context = value(tags, [THINK + BOTH, RIGHT])
    assert f"<information>{HOME} ## {GUILD}</information>" in context.whole_text(episode.trajectories[0].leaf)
    assert episode.cost["calls"] == 2
    assert divided("a ## b ## c ## d ## e") == ["a", "b", "c", "d"] and divided(" ## ") == [" ## "]


@pytest.mark.parametrize(
    "replies,outcome",
    [
        ([THINK + BOTH, RIGHT], 1.0),
        ([BOTH, RIGHT], 0.8),  # a search without a thought
        ([THINK + BOTH, WRONG], 0.3),  # what was sought was found
        ([THINK + "<search>home of Ann</search>", WRONG], 0.2),
        ([WRONG], 0.2),
        ([BOTH, WRONG], 0.1),
        ([THINK + BOTH, "-"], 0.0),
    ],
)
def test_the_outcome_minds_form_and_what_was_found(tags, replies, outcome):
    assert value(tags, replies, split=0.0, answerable=0.0)[0].value == pytest.approx(outcome)


def test_what_form_and_finding_are_worth_are_hyper_parameters(tags):
    given = {"split": 0.0, "answerable": 0.0}
    assert value(tags, [BOTH, RIGHT], structure=0.3, **given)[0].value == pytest.approx(0.7)
    assert value(tags, [THINK + BOTH, WRONG], retrieved=0.4, **given)[0].value == pytest.approx(0.6)
    assert value(tags, [BOTH, WRONG], unformed=0.05, **given)[0].value == pytest.approx(0.05)


def test_dividing_well_covers_the_question_without_saying_things_twice():
    question = "home of ann guild of bob"  # of counts 2, home ann guild bob 1: norm sqrt(8)
    # the mean of the two: of 2, the others 1 (over sqrt 3): the same direction; the two share `of`: 1/3
    assert splittability(question, ["home of ann", "guild of bob"]) == pytest.approx(1 - 1 / 3)
    # one of them twice: (2 + 1 + 1) / (sqrt 8 sqrt 3), and they are the same
    assert splittability(question, ["home of ann"] * 2) == pytest.approx(4 / 24**0.5 - 1)
    assert splittability(question, ["home of ann"]) == pytest.approx(4 / 24**0.5)
    assert splittability(question, ["sea", "sea of cid"]) < 0


def test_sub_queries_are_answerable_by_their_own_results_alone():
    at = Ref("e", 0)
    # home of ann / home of ann is ulm: 3 / (sqrt 3 sqrt 5)
    fits = (3 / 5) ** 0.5
    assert answerability(Search("", "home of Ann ## guild of Bob", f"{HOME} ## {GUILD}", at)) == pytest.approx(fits)
    crossed = answerability(Search("", "home of Ann ## guild of Bob", f"{GUILD} ## {HOME}", at))
    assert crossed == pytest.approx(1 / 15**0.5)  # `of` alone
    assert answerability(Search("", "home of Ann ## guild of Bob", HOME, at)) == pytest.approx(fits / 2)


def test_both_are_added_to_the_outcome(tags):
    plain = value(tags, [THINK + BOTH, RIGHT], split=0.0, answerable=0.0)[0]
    full = value(tags, [THINK + BOTH, RIGHT], split=0.5, answerable=0.25)[0]
    parts = full.parts
    assert full.value == pytest.approx(plain.value + 0.5 * parts["splittability"] + 0.25 * parts["answerability"])
    assert parts["divided"] == 1.0 and parts["splits"] == 1.0
    twice = value(tags, [THINK + "<search>home of Ann ## home of Ann</search>", RIGHT])[0]
    assert twice.parts["divided"] == 0.0 and twice.parts["splittability"] < parts["splittability"]
    assert value(tags, [THINK + "<search>home of Ann</search>", RIGHT])[0].parts["splits"] == 0.0
