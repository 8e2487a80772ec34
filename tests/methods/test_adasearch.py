"""AdaSearch by hand: two modes, labels from the policy's own success, decisions, and what follows from them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.agents import ANN, played
from support.battery import of
from support.episodes import scripted_context

from selfteach.core import Episode, RolloutGroup, RolloutRequest, Task, TaskSource, Tree
from selfteach.loop.episode import play
from selfteach.methods.adasearch import (
    MEMORY,
    decide_only,
    decide_then_answer,
    decisions,
    modes_and_decisions,
    right_decision,
    right_either_way,
    unlearned_answer,
)

SOURCE = TaskSource("t", lambda i: replace(ANN, id=f"q{i}"), ())


def select(block, rounds, **more):
    return block(n=2, rollouts=5, finished_rounds=rounds, source=SOURCE, seed=0, state=0, **more)[0]


def answered(request: RolloutRequest, *answers: str | None) -> RolloutGroup:
    episodes = [Episode(f"{request.task.id}/{i}", Tree(), [], answer=a) for i, a in enumerate(answers)]
    return RolloutGroup(request, episodes, {}, request.task.id)


def test_first_every_question_in_both_modes():
    solve, decide = of("adasearch", groups=2, rollouts=5, solve_steps=9).stages
    requests = select(solve.select, [])
    assert [(r.program, r.n) for r in requests] == [("main", 5), ("memory", 5)] * 2
    assert len({r.task.id for r in requests}) == 2 and solve.until == 9 and not select(solve.select, [[]])
    assert "prefix='<decision> search</decision>'" in str(solve.programs["main"])
    assert "prefix='<decision> memory</decision>'" in str(solve.programs["memory"])
    assert decide.reward[0].name == "right_decision" and len(of("adasearch", solve_steps=0).stages) == 1
    assert solve.reward[0].name == "exact_match"


@pytest.mark.parametrize("threshold,labels", [(0.5, [True, False]), (0.2, [True, True]), (0.6, [False, False])])
def test_then_decisions_labelled_by_the_rate_of_right_answers_from_memory(threshold, labels):
    block = of("adasearch", samples=4, threshold=threshold, balanced=False).stage.select
    first = select(block, [])
    assert [(r.program, r.n) for r in first] == [("memory", 4)] * 4  # twice as many as are asked
    # two of four, and one of four with one that gave no answer
    done = [answered(first[0], "Ulm", "Ulm", "x", "x"), answered(first[1], "Ulm", "x", "x", None)]
    second = select(block, [done])
    assert [(r.program, r.n, r.task.tags["sufficient"]) for r in second] == [("main", 5, s) for s in labels]
    assert select(decisions(samples=1, threshold=0.5), [done, []]) == []


def test_of_labels_an_answer_is_right_that_contains_a_gold_answer():
    block = of("adasearch", samples=2, balanced=False).stage.select
    first = select(block, [])
    done = [answered(first[0], "it is Ulm", "x"), answered(first[1], "Ulmer", "x")]
    assert [r.task.tags["sufficient"] for r in select(block, [done])] == [True, False]


def test_jointly_both_modes_and_decisions_are_learned_in_one_step(tags):
    (stage,) = of("adasearch", joint=True, groups=2, threshold=0.4, balanced=False).stages
    first = select(stage.select, [])
    assert [(r.program, r.n) for r in first] == [("main", 5), ("memory", 5)] * 2
    # by searching all are right, which labels nothing; from memory two of five, and one of five
    done = [
        answered(first[0], *["Ulm"] * 5),
        answered(first[1], "Ulm", "in Ulm", "x", "x", None),
        answered(first[2], *["Ulm"] * 5),
        answered(first[3], "Ulm", "x", "x", "x", None),
    ]
    second = select(stage.select, [done])
    assert [(r.program, r.n, r.task.id, r.task.tags["sufficient"]) for r in second] == [
        ("decide", 5, first[0].task.id, True),
        ("decide", 5, first[2].task.id, False),
    ]
    assert select(stage.select, [done, []]) == []
    balanced = select(modes_and_decisions(threshold=0.1, balanced=True), [done])
    assert [r.task.tags["sufficient"] for r in balanced] == [True, True]  # all of one kind: as they come
    _, group = played(stage.programs["decide"], [MEMORY], tags)
    assert group.episodes[0].answer == "memory" and [t.learn for t in group.episodes[0].trajectories] == ["main"]
    _, group = played(stage.programs["memory"], ["<answer> Ulm</answer>"], tags)
    assert [t.learn for t in group.episodes[0].trajectories] == ["main"]


@pytest.mark.parametrize(
    "answer,tags,value",
    [("Ulm", {}, 1.0), ("in Ulm", {}, 0.0), ("memory", {}, 0.0), ("memory", {"sufficient": True}, 1.0)],
)
def test_jointly_answers_are_right_by_exact_match_and_decisions_by_their_label(answer, tags, value):
    assert right_either_way(answer=answer, task=replace(ANN, tags=tags)).value == value
    assert of("adasearch", joint=True).stage.reward[0].name == "right_either_way"


@pytest.mark.parametrize(
    "known,asked",
    [
        ("yyny", [2, 0]),  # one of each, though three of four are known
        ("nnny", [0, 3]),
        ("yyyy", [0, 1]),  # all of one kind: as they come
    ],
)
def test_as_many_decisions_for_memory_as_for_search(known, asked):
    block = of("adasearch", groups=2, samples=1).stage.select
    done = [answered(r, "Ulm" if k == "y" else "x") for r, k in zip(select(block, []), known, strict=True)]
    assert [r.task.id for r in select(block, [done])] == [done[i].request.task.id for i in asked]


@pytest.mark.parametrize(
    "decision,sufficient,value",
    [("memory", True, 1.0), ("search", True, 0.0), ("memory", False, 0.0), ("search", False, 1.0), (None, False, 0.0)],
)
def test_a_decision_is_right_or_wrong_whatever_it_costs(decision, sufficient, value):
    got = right_decision(answer=decision, task=Task("t", "", tags={"sufficient": sufficient}))
    assert got.value == value and got.parts["decision"] == value and got.parts["memory"] == (decision == "memory")


def test_only_the_decision_is_sampled_and_the_probe_is_not_learned(tags):
    context, group = played(decide_only(), [MEMORY], tags)
    assert group.episodes[0].answer == "memory" and context.engine.calls[0][2].stop == ("</decision>",)
    _, group = played(unlearned_answer(prefix="<answer>"), [" Ulm</answer>"], tags)
    assert group.episodes[0].answer == "Ulm" and [t.learn for t in group.episodes[0].trajectories] == [None]


@pytest.mark.parametrize(
    "replies,calls,answer",
    [
        ([MEMORY, "<think>x</think><answer> Ulm</answer>"], 0, "Ulm"),
        ([MEMORY, "<think>x</think><search>"], 0, None),  # from memory no engine is asked
        (["<decision> search</decision>", "<search>home of Ann</search>", "<answer> Ulm</answer>"], 1, "Ulm"),
        (["hm", "<search>home of Ann</search>", "<answer> Ulm</answer>"], 1, "Ulm"),  # no decision: it may search
    ],
)
def test_the_answer_follows_the_decision(tags, replies, calls, answer):
    program = decide_then_answer(answerer="search", turns=2, invalid="")
    _, group = played(program, replies, tags)
    assert group.episodes[0].answer == answer and group.episodes[0].cost.get("calls", 0) == calls


def test_turns_bound_the_searches_of_a_decision(tags):
    replies = ["<decision> search</decision>", *["<search>home of Ann</search>"] * 2, "<answer> Ulm</answer>"]
    program = of("adasearch", turns=1, beta=0.0).decode["main"]
    context = scripted_context(program, replies, tags, tools={"search": lambda query: "-"})
    (episode,) = asyncio.run(play(context, [RolloutRequest(ANN)]))[0].episodes
    assert episode.cost["calls"] == 1 and episode.answer is None
