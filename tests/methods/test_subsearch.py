"""SubSearch by hand: sub-queries are answered each by itself, and how they divide a question is measured."""

from __future__ import annotations

import asyncio

import pytest
from support.agents import played
from support.battery import of

from selfteach.core import Ref, RolloutRequest, Task
from selfteach.core.blocks import initial_state
from selfteach.core.scoring import score
from selfteach.core.search_record import Search
from selfteach.methods.subsearch import answerability, divided, gated, scheduled, splittability

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


def value(tags, replies, state=None, **args):
    stage = of("subsearch", **args).stage
    engine = lambda query: FOUND.get(query, "nothing found.")  # noqa: E731
    context, group = played(stage.programs["main"], replies, tags, engine, RolloutRequest(TASK, key="t"))
    reward = stage.reward[0]
    states = [state or initial_state(reward)]
    (found,) = asyncio.run(score(reward, [group], context, state=states))["reward"].values()
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
    question = "question: what is the home of Ann, and the guild of Bob?"
    q = question.removeprefix("question:")  # home ann guild bob: norm 2; a sub-query of it: 2 / (2 sqrt 2) like it
    half = 0.5**0.5
    assert splittability(q, ["home of Ann", "guild of Bob"]) == pytest.approx(0.5 + 0.5 * half)
    assert splittability(q, ["home of Ann"] * 2) == pytest.approx(0.5 * half)  # each is like the other altogether
    # one word is in both, home ann / home bob: cos 1/2; mean: 2 home, ann, bob over sqrt 6
    assert splittability(q, ["home of Ann", "home of Bob"]) == pytest.approx(0.5 * 4 / (2 * 6**0.5) + 0.5 * half / 2)
    assert splittability(q, ["sea of Cid", "river of Dan"]) == 0.0


@pytest.mark.parametrize(
    "query,value",
    [
        ("home of Ann", 1 - (0.85 - 0.5**0.5) / 0.15),  # half of it
        ("home Ann guild", 1 - (3 / 12**0.5 - 0.85) / 0.15),  # nearly it
        ("what is the home of Ann, and the guild of Bob", 0.0),  # the same
        ("sea of Cid", 0.0),  # another
    ],
)
def test_a_single_query_says_the_question_in_other_words(query, value):
    assert splittability("what is the home of Ann, and the guild of Bob?", [query]) == pytest.approx(value)


def test_sub_queries_are_answerable_by_their_own_results_alone():
    at = Ref("e", 0)
    fits = 2 / 6**0.5  # home ann / home ann ulm
    assert answerability(Search("", "home of Ann ## guild of Bob", f"{HOME} ## {GUILD}", at)) == pytest.approx(fits)
    assert answerability(Search("", "home of Ann ## guild of Bob", f"{GUILD} ## {HOME}", at)) == 0.0
    assert answerability(Search("", "home of Ann ## guild of Bob", HOME, at)) == pytest.approx(fits / 2)
    # the mean of its first three documents, not the best of them
    assert answerability(Search("", "home of Ann", f"{HOME} {GUILD}", at)) == pytest.approx(fits / 2)
    assert answerability(Search("", "home of Ann", f"{HOME} {HOME} {HOME} {GUILD}", at)) == pytest.approx(fits)


def test_a_wrong_answer_is_paid_for_both_and_a_right_one_for_neither(tags):
    wrong = value(tags, [THINK + BOTH, WRONG], weight=0.4, adaptive=False)[0]
    of_both = 0.4 * (0.5 * wrong.parts["splittability"] + 0.5 * wrong.parts["answerability"])
    assert wrong.value == pytest.approx(of_both + 0.1)
    assert wrong.parts["divided"] == 1.0 and wrong.parts["splits"] == 1.0
    one = value(tags, [THINK + "<search>home of Ann</search>", WRONG], weight=0.4, adaptive=False)[0]
    assert one.value < of_both  # half of the question
    assert value(tags, [THINK + BOTH, RIGHT])[0].value == 1.0
    assert value(tags, [BOTH, RIGHT])[0].value == pytest.approx(0.8)
    assert value(tags, [BOTH, WRONG])[0].value == 0.0  # its form costs more than both are worth
    twice = value(tags, [THINK + "<search>home of Ann ## home of Ann</search>", WRONG])[0]
    assert twice.parts["divided"] == 0.0 and twice.parts["splittability"] < wrong.parts["splittability"]


def test_the_weight_is_moved_where_that_is_asked_for(tags):
    reward = of("subsearch").stage.reward[0]
    late = {**initial_state(reward), "step": 200, "right": 0.0}  # 0.15 by then, and nothing right so far
    assert value(tags, [THINK + BOTH, WRONG], state=late)[0].parts["weight"] == pytest.approx(0.1565)
    assert value(tags, [THINK + BOTH, WRONG], state=late, adaptive=False)[0].parts["weight"] == pytest.approx(0.15)


def test_intermediate_rewards_weigh_less_and_less():
    assert scheduled(0.2, 100) == pytest.approx(0.2 - 0.05 * 0.5**1.5)
    assert [scheduled(0.2, n) for n in (200, 2200, 9999)] == pytest.approx([0.15, 0.02, 0.02])
    assert scheduled(0.01, 5000) == pytest.approx(0.01)  # it was less than what is kept


def test_more_of_them_while_few_are_right_and_that_stands_still_and_less_while_many_are_and_more():
    assert gated(0.15, 0.2, 0.0, 0.0) == pytest.approx((0.15 + 0.2 * 0.65 * 0.05, 0.0))
    assert gated(0.15, 0.2, 1.0, 0.5) == pytest.approx((0.15, 0.51))  # it moves, and is not good yet
    assert gated(0.15, 0.2, 1.0, 0.8) == pytest.approx((0.15 - 0.2 * 0.154 * 0.13, 0.804))
    assert gated(0.15, 0.2, 0.0, 0.9)[0] == pytest.approx(0.15)  # it falls
    assert gated(0.5, 2.0, 0.0, 0.0)[0] == pytest.approx(0.51)  # at most 0.01 at a time
