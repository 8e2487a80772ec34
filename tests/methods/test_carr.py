"""CaRR by hand: which statements what is cited supports, and what they are worth in a group."""

from __future__ import annotations

import asyncio

import pytest
from support.agents import played
from support.battery import of

from selfteach.core import RolloutRequest, Task
from selfteach.core.errors import BadValue
from selfteach.core.scoring import score
from selfteach.methods.carr import rubric_share

HOME, MAYOR, MENTOR = "the home of Ann is Ulm.", "the mayor of Ulm is Bob.", "the mentor of Bob is Cid."
RUBRICS = ("the home of Ann is <E2>.", "the mayor of <E2> is <E1>.", "the mentor of <E1> is <E0>.")
TASK = Task("t", "question: what is the mentor of the mayor of the home of Ann?\n", ("Cid",), tags={"rubrics": RUBRICS})
ALL = ["Ann", "Ulm", "Bob", "Cid"]


@pytest.mark.parametrize(
    "cited,seen,share,unconnected",
    [
        (ALL, [HOME, MAYOR, MENTOR], 1, 1),
        (ALL, [MAYOR, MENTOR], 2 / 3, 2 / 3),
        (ALL, [HOME, MENTOR], 1 / 3, 2 / 3),  # the first is supported, and nothing connects it to the answer
        (ALL, [HOME, MAYOR], 0, 2 / 3),  # nothing at the answer
        (["Ann", "Ulm", "Dan", "Cid"], [HOME, MAYOR, MENTOR], 0, 1 / 3),  # another entity is named
        (["Cid"], [HOME, MAYOR, MENTOR], 0, 0),  # hidden entities are not named
        ([], [HOME, MAYOR, MENTOR], 0, 0),
        (ALL, [], 0, 0),  # nothing was seen
    ],
)
def test_rubrics_are_supported_and_connected(cited, seen, share, unconnected):
    assert rubric_share(TASK, "Cid", cited, seen) == pytest.approx(share)
    assert rubric_share(TASK, "Cid", cited, seen, connected=False) == pytest.approx(unconnected)


def test_a_page_that_is_not_cited_supports_nothing():
    one = Task("t", "", tags={"rubrics": ("the home of Ann is <E0>.",)})
    assert rubric_share(one, "Ulm", ["Ann"], [HOME]) == 1.0
    assert rubric_share(one, "Ulm", ["Bob"], [HOME]) == 0.0
    with pytest.raises(BadValue, match="has no rubrics"):
        rubric_share(Task("t", ""), "Ulm", [], [])


TWO = Task(
    "t",
    "question: what is the mayor of the home of Ann?\n",
    ("Bob",),
    tags={"rubrics": ("the home of Ann is <E1>.", "the mayor of <E1> is <E0>.")},
)
BOTH = ["<search>home of Ann</search>", "<search>mayor of Ulm</search>"]
FULL, BARE = "<cite> Ann, Ulm, Bob</cite><answer> Bob</answer>", "<answer> Bob</answer>"
WRONG = "<cite> Ann, Ulm, Bob</cite><answer> Bobo</answer>"
FOUND = {"home of Ann": HOME, "mayor of Ulm": MAYOR}


def values(tags, ends, task=TWO, **args):
    """The scores of a group whose episodes search for both facts and end so."""
    stage = of("carr", rollouts=2, beta=0.0, **args).stage
    left = iter(ends)  # each episode's last turn, whichever comes to it first

    def replies(text, key):
        return (*BOTH, "")[text.count("</search>")] or next(left)

    request = RolloutRequest(task, n=len(ends), key="t")
    context, group = played(stage.programs["main"], replies, tags, FOUND.__getitem__, request)
    found = asyncio.run(score(stage.reward[0], [group], context))["reward"]
    said = {context.text(at).rpartition("</search>")[2]: score for at, score in found.items()}  # in whatever order
    return [said[end] for end in ends]


@pytest.mark.parametrize(
    "args,expected",
    [
        ({}, [0.7 + 0.3, 0.7, 0.0]),  # all rubrics, right without any, wrong (the best has 2 of 2)
        ({"alpha": 0.0}, [1.0, 1.0, 0.0]),
        ({"alpha": 0.5}, [1.0, 0.5, 0.0]),
        ({"gated": False}, [1.0, 0.7, 0.0]),
    ],
)
def test_right_answers_are_worth_more_with_what_supports_them(tags, args, expected):
    got = values(tags, [FULL, BARE, WRONG], **args)
    assert [s.value for s in got] == pytest.approx(expected)
    assert [s.parts["guessed"] for s in got] == [0.0, 1.0, 0.0]


def test_how_much_rubrics_count_is_a_hyper_parameter(tags):
    assert [s.value for s in values(tags, [FULL, BARE], alpha=0.1)] == pytest.approx([1.0, 0.9])


def test_rubrics_count_relative_to_the_best_of_the_group(tags):
    half = "<cite> Ann, Ulm, Cid</cite><answer> Bob</answer>"  # <E1> is read in second place, so both are supported
    assert [s.parts["rubrics"] for s in values(tags, [half, BARE])] == [1.0, 0.0]
    wrong_page = "<cite> Ann, Bob</cite><answer> Bob</answer>"  # Bob for Ulm: neither statement is so
    assert [s.value for s in values(tags, [wrong_page, BARE])] == pytest.approx([0.7, 0.7])  # the maximum is 0


def test_a_wrong_answer_is_paid_for_rubrics_only_without_the_gate(tags):
    ungated = values(tags, [WRONG, FULL], gated=False, connected=False)
    assert [s.value for s in ungated] == pytest.approx([0.3 * 0.5, 1.0])  # one of two, of which the best has both
    assert values(tags, [WRONG, FULL], connected=False)[0].value == 0.0


def test_an_answer_of_wrong_form_has_nothing(tags):
    (bad, _) = values(tags, ["<think>" + FULL, BARE])
    assert bad.value == 0.0 and bad.parts["rubrics"] == 0.0 and bad.why == "think is not closed"


def test_how_precise_citations_are_is_a_part_where_something_is_cited(tags):
    assert all("citation_precision" not in s.parts for s in values(tags, [FULL, BARE]))  # nobody says what is needed
    task = Task(TWO.id, TWO.prompt, TWO.answer, tags={**TWO.tags, "chain": (HOME, MAYOR)})
    found, none = values(tags, ["<cite> Ann, Cid, Bob, Ann</cite><answer> Bob</answer>", BARE], task=task)
    assert found.parts["citation_precision"] == pytest.approx(2 / 3)  # of Ann, Cid and Bob all but Cid
    assert "citation_precision" not in none.parts
