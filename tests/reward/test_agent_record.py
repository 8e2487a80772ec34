"""What a search agent said is read from its own tokens alone."""

from __future__ import annotations

import pytest
from support.agents import ANN, ULM, played

from selfteach.core import Task
from selfteach.core.search_record import Piece, citation_precision, own_text, pieces_of
from selfteach.reward.agent_record import count_searches, fault, verdicts_of
from selfteach.reward.overlap import word_f1
from selfteach.rollout.search import RETRY, search_agent


def test_pieces_are_what_was_said_found_and_told(tags):
    replies = ["<think>t</think><search>home of Ann</search>", "hm", "<answer> Ulm</answer>"]
    context, group = played(search_agent(invalid=RETRY), replies, tags)
    pieces = pieces_of(context.path(group.episodes[0].trajectories[0].leaf), context)
    assert [p.kind for p in pieces] == ["own", "information", "own", "told", "own"]
    assert pieces[0].text == replies[0] and pieces[1].text == f"<information>{ULM}</information>"
    assert own_text(pieces) == "".join(replies) and count_searches(pieces) == 1
    assert fault(pieces) == "a turn with neither a query nor an answer"


def own(text: str) -> Piece:
    return Piece("own", text)


FOUND = Piece("information", f"<information>{ULM}</information>")


@pytest.mark.parametrize(
    "pieces,verdicts",
    [
        ([own("<search>q</search>"), FOUND, own("<judge>no</judge>")], [False]),
        ([own("<search>q</search>"), FOUND, own("<search>q</search><judge>Yes</judge>")], [None]),  # of what comes next
        ([own("<search>q</search>"), FOUND, own("<judge>maybe</judge>")], [None]),
        ([own("<judge>Yes</judge><search>q</search>"), FOUND], [None]),  # before anything was found
        ([FOUND, FOUND, own("<judge>Yes</judge>")], [None, True]),  # of the result before it
        ([FOUND, own("<judge>No</judge><search>q</search>"), FOUND, own("<judge>Yes</judge>")], [False, True]),
    ],
)
def test_a_verdict_is_of_the_result_before_it(pieces, verdicts):
    assert [v and v.accepted for v in verdicts_of(pieces, "judge", "Yes", "No")] == verdicts


def test_a_goal_is_the_last_before_the_search():
    said = own("<goal>a</goal><goal> home of Ann</goal><search>q</search>")
    (verdict,) = verdicts_of([said, FOUND, own("<reflect>True</reflect>")], "reflect", "True", "False")
    assert verdict is not None and (verdict.goal, verdict.information) == ("home of Ann", ULM)


@pytest.mark.parametrize(
    "said,why",
    [
        ("<think>a</think><answer>b</answer>", ""),
        ("<think>a<answer>b</answer>", "think is not closed"),
        ("<judge>Yes<answer>b</answer>", "judge is not closed"),
        ("<think>a</think>", "no answer"),
        ("<answer>b</answer><answer>c</answer>", "more than one answer"),
    ],
)
def test_faults_of_form(said, why):
    assert fault([own(said)]) == why


@pytest.mark.parametrize(
    "answer,value", [("Ulm", 1.0), ("in the Ulm", 2 / 3), (None, 0.0), ("Ulm Ulm", 2 / 3), ("x", 0)]
)
def test_f1_of_words(answer, value):
    assert word_f1(answer=answer, task=ANN).value == pytest.approx(value)
    assert word_f1(answer=answer, task=Task("t", "", ())).value == 0.0  # no gold answer
    assert word_f1(answer="po river", task=Task("t", "", ("x", "river Po"))).value == 1.0  # the best of the golds


HOME, MAYOR = "the home of Ann is Ulm.", "the mayor of Ulm is Bob."


@pytest.mark.parametrize(
    "cited,found,share",
    [
        (["Ann", "Bob"], [HOME, MAYOR], 1.0),
        (["Ann", "Bob"], [HOME], 0.5),  # what was not found supports nothing
        (["Ann", "Cid", "Ann"], [HOME, MAYOR], 0.5),  # each page once
        (["An"], [HOME], 0.0),  # whole names
        (["Cid"], ["the river of Cid is Po."], 0.0),  # what it says is not needed
    ],
)
def test_of_what_is_cited_the_share_that_supports_the_answer(cited, found, share):
    assert citation_precision(cited, found, [HOME, MAYOR]) == {"citation_precision": share}


def test_what_cites_nothing_has_no_precision():
    assert citation_precision([], [HOME], [HOME]) == {} == citation_precision(["Ann"], [HOME], [])
