"""s3 by hand: which documents reach the generator, and what the searcher is paid for."""

from __future__ import annotations

import asyncio

import pytest
from support.agents import ANN, ULM, played, scored
from support.battery import of

from selfteach.core import RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.reward.answer import states_gold
from selfteach.rollout.generator import last_object, search_for_generator

ASK, AGAIN, DONE = "<search>home of Ann</search>", "<search>Ann home</search>", "<answer>"
YES, NO = "<judge> Yes</judge>", "<judge> No</judge>"
NOISE = "the river of Bob is Po."


def documents(tags, replies, found, **args):
    """The documents that reach a generator which repeats them."""
    results = iter(found)
    program = search_for_generator(generator=last_object(), **args)
    read: list[list[str]] = []
    program = program.replace(generator=all_of(read))
    played(program, replies, tags, lambda query: next(results))
    return read[-1]


def all_of(read):
    def keep(*, question, documents):
        read.append(list(documents))
        return "Ulm"

    made = last_object()
    return made.__class__(keep, {})


@pytest.mark.parametrize(
    "replies,found,args,kept",
    [
        ([DONE], [ULM], {}, [ULM]),  # what the question found, unjudged
        ([NO + ASK, YES + DONE], [NOISE, ULM], {}, [ULM]),  # rejected, then accepted
        ([NO + ASK, YES + DONE], [NOISE, ULM], {"select": False}, [NOISE, ULM]),
        ([ASK, YES + DONE], [NOISE, ULM], {}, [NOISE, ULM]),  # of what was not judged all
        ([NO + ASK, NO + DONE], [NOISE, ULM], {}, []),
        ([YES + ASK, YES + DONE], [ULM, ULM], {}, [ULM]),  # each once
        ([YES + ASK, YES + AGAIN, YES + DONE], [ULM, NOISE, ULM], {}, [ULM, NOISE]),  # where it was found first
        ([ASK, DONE], [ULM], {"naive": False}, [ULM]),
        ([NO + ASK, NO + AGAIN], [NOISE, NOISE + " it is.", ULM], {"turns": 2}, [ULM]),  # turns are over: unjudged
        # one more, in which it is judged, and what is asked is not answered
        ([NO + ASK, NO + AGAIN, NO + DONE], [NOISE, ULM, ULM], {"turns": 2, "last": True}, []),
        ([NO + ASK, NO + AGAIN, YES + DONE], [NOISE, NOISE, ULM], {"turns": 2, "last": True}, [ULM]),
        ([NO + ASK, NO + AGAIN, NO + ASK], [NOISE, ULM, NOISE], {"turns": 2, "last": True}, []),
        ([NO + ASK, YES + DONE], [NOISE, ULM], {"turns": 2, "last": True}, [ULM]),  # it has ended before
    ],
)
def test_which_documents_reach_the_generator(tags, replies, found, args, kept):
    assert documents(tags, replies, found, **args) == kept


def test_where_the_searcher_begins_and_whether_it_chooses_are_hyper_parameters(tags):
    program = of("s3", naive=False, select=False, filtered=False).stages[-1].programs["main"]
    assert program == search_for_generator(turns=3, naive=False, select=False, rag=True, last=True, accepts=YES)
    read: list[list[str]] = []
    played(program.replace(generator=all_of(read)), [ASK, NO + DONE], tags, lambda query: NOISE)
    assert read == [[NOISE], [NOISE]]  # of naive RAG, and the one result, which was rejected


@pytest.mark.parametrize(
    "rag,generated,value",
    [
        (False, [" Ulm.</think><answer> it is Ulm</answer>"], 2.0),  # it contains the gold answer, which counts twice
        (False, [" Po.</think><answer> Po</answer>"], 0.0),
        (
            True,
            [" x.</think><answer> x</answer>", " Ulm.</think><answer> Ulm</answer>"],
            2.0,
        ),  # RAG is wrong
        (True, [" Ulm.</think><answer> Ulm</answer>"] * 2, 1.0),  # as right as RAG: 2 - 1
        (True, [" x.</think><answer> x</answer>"] * 2, 0.0),
        (True, [" Ulm.</think><answer> Ulm</answer>", " x.</think><answer> x</answer>"], -1.0),  # made it worse
    ],
)
def test_the_reward_is_the_gain_beyond_naive_rag(tags, rag, generated, value):
    stage, roles = of("s3", filtered=not rag).stages[-1], ("policy", "generator")
    before, after = (generated[:1], generated[1:]) if rag else ([], generated)
    replies = [*before, YES + ASK, YES + DONE, *after]
    request = RolloutRequest(ANN, key="t")
    context, group = played(stage.programs["main"], replies, tags, request=request, model_roles=roles)
    found = asyncio.run(score(stage.reward[0], [group], context))["reward"]
    (end,) = found.values()  # the generator's own texts are not rewarded
    assert end.value == value and end.parts["searches"] == 1.0
    assert sum(t.learn is not None for t in group.episodes[0].trajectories) == 1


def test_the_generator_reads_documents_as_it_was_shown_them_and_answers_from_them_or_not_at_all(tags):
    stage, roles = of("s3").stages[-1], ("policy", "generator")
    replies = [NO + ASK, YES + DONE, " x.</think><search>"]
    context, group = played(stage.programs["main"], replies, tags, lambda query: ULM, model_roles=roles)
    role, prompt, sampling = context.engine.calls[-1][:3]
    assert role == "generator" and sampling.stop == ("</answer>", "<search>")
    assert prompt.endswith(f"{ASK}<information>{ULM}</information>{YES}<think>so it is")
    assert group.episodes[0].answer is None


def test_questions_that_naive_rag_answers_are_left_out():
    made = of("s3")
    assert [s.name for s in made.stages] == ["probe", "main"] and made.stages[1].select.args["mix"] == "hard"
    assert [s.name for s in of("s3", filtered=False).stages] == ["main"]


@pytest.mark.parametrize("said,value", [("it is Ulm", 1.0), ("Ulmen", 0.0)])
def test_the_probe_asks_what_the_reward_asks(tags, said, value):
    probe = of("s3").stages[0]
    replies = [f" Ulm.</think><answer> {said}</answer>"]
    found = scored(probe.reward[0], probe.programs["main"], replies, tags, model_roles=("policy", "generator"))
    assert found.value == value and found.parts["rag"] == value  # it is no answer of a searcher


@pytest.mark.parametrize("answer,value", [("it is Ulm", 1.0), ("Po", 0.0)])
def test_an_agent_that_answers_itself_is_rewarded_for_that_alone(tags, answer, value):
    stage = of("s3", decoupled=False, filtered=False).stage
    got = scored(stage.reward[0], stage.programs["main"], [ASK, f"<answer>{answer}</answer>"], tags)
    assert got.value == value


def test_a_gold_answer_is_contained_as_whole_words():
    task = Task("t", "", ("Ulm", "the Danube"))
    assert [states_gold(a, task) for a in ("Ulm.", "in Ulm it is", "Ulmen", "Danube", None)] == [1, 1, 0, 1, 0]
