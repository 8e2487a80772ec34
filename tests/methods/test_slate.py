"""SLATE by hand: steps are scored, siblings are compared with each other alone, and better ones are gone on from."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.agents import played, scored
from support.battery import of

from selfteach.core import RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.methods.slate import chances, step_scores, worth

HOME, MAYOR = "the home of Ann is Ulm.", "the mayor of Ulm is Bob."
TASK = Task(
    "t",
    "question: what is the mayor of the home of Ann?\n",
    ("Bob",),
    tags={"chain": (HOME, MAYOR), "keywords": (("home of Ann", "Ann home"), ("mayor of Ulm", "Ulm mayor"))},
)
THINK = "<think>the home.</think>"
FIRST, AGAIN, LATER = (f"<search>{q}</search>" for q in ("home of Ann", "Ann home", "mayor of Ulm"))
RIGHT, WRONG = "<think>so Bob.</think><answer> Bob</answer>", "<answer>x</answer>"


@pytest.mark.parametrize(
    "said,asked,found,scores",
    [
        (THINK + FIRST, [], [], {"thought": 1, "query": 1}),
        ("<think>hm.</think>" + FIRST, [], [], {"thought": 0, "query": 1}),
        (FIRST, [], [], {"thought": -1, "query": 1}),
        (LATER, [], [], {"thought": -1, "query": 0}),  # on the way, and not yet
        (
            AGAIN,
            ["home of Ann"],
            ["nothing"],
            {"thought": -1, "query": 1},
        ),  # not found: in other words
        (FIRST, ["home of Ann"], ["nothing"], {"thought": -1, "query": -1}),  # in the same words
        (AGAIN, ["home of Ann"], [HOME], {"thought": -1, "query": -1}),  # what was found
        (LATER, ["home of Ann"], [HOME], {"thought": -1, "query": 1}),
        ("<search>sea of Cid</search>", [], [], {"thought": -1, "query": -1}),
        (RIGHT, [], [], {"thought": 1, "answer": 1}),
        (WRONG, [], [], {"thought": -1, "answer": -1}),
        ("<answer> Bob of Ulm</answer>", [], [], {"thought": -1, "answer": 0}),  # F1 2 / (3 + 1)
        ("<answer> Bob or Cid or</answer>", [], [], {"thought": -1, "answer": -1}),  # F1 2 / (4 + 1)
        ("nothing at all", [], [], {"thought": -1, "neither": -1}),
    ],
)
def test_steps_are_scored(said, asked, found, scores):
    assert step_scores(said, TASK, asked, found) == scores


def test_an_answer_right_or_wrong_is_worth_more_the_earlier_it_is():
    right, wrong = {"thought": 1.0, "answer": 1.0}, {"thought": 0.0, "answer": -1.0}
    assert [worth(right, step, 4, 0.1, True) for step in (0, 2, 3)] == pytest.approx([2.1, 2.05, 2.025])
    assert [worth(wrong, step, 4, 0.1, True) for step in (0, 2, 3)] == pytest.approx([-0.9, -0.95, -0.975])
    assert worth({"thought": 0.0, "neither": -1.0}, 0, 4, 0.1, True) == -1.0
    assert worth({"thought": 0.0, "query": 1.0}, 1, 4, 0.1, True) == 1.0
    assert [worth(s, 0, 4, 0.1, False) for s in (right, {"query": 1.0})] == [1.0, 0.0]


def two_steps(tags):
    """Two siblings at each of two steps: a good query beside a guess, then a right answer beside a wrong one."""
    stage = of("slate", rollouts=2, turns=2, eta=0.0, beta=0.0).stage
    replies = [THINK + FIRST, WRONG, RIGHT, WRONG]
    context, group = played(
        stage.programs["main"], replies, tags, lambda query: HOME, request=RolloutRequest(TASK, key="t")
    )
    return stage, context, group


def test_at_eta_0_the_best_of_each_step_is_gone_on_from(tags):
    stage, context, group = two_steps(tags)
    assert group.episodes[0].answer == "Bob" and group.episodes[0].cost["calls"] == 1
    found = asyncio.run(score(stage.reward[0], [group], context))["reward"]
    # a step with the query: 1 + 1; a guess: -1 - 1 + 0.1; answers at step 1 of 2: 1 + 1 + 0.1 / 2, -1 - 1 + 0.1 / 2
    assert [s.value for s in found.values()] == pytest.approx([2.0, -1.9, 2.05, -1.95])


def test_siblings_are_gone_on_from_by_their_advantages(tags):
    # mean 0, deviation with k - 1 sqrt(8): A is 0.7071 and -0.7071, so that exp(1.4142 / eta) is between them
    assert chances([2.0, -2.0], 0.7) == pytest.approx([0.8829, 0.1171], abs=1e-4)
    assert chances([2.0, -2.0], 0.35) == pytest.approx([0.9827, 0.0173], abs=1e-4)
    assert chances([1.0, 1.0], 0.7).tolist() == [0.5, 0.5] and chances([3.0], 0.7).tolist() == [1.0]
    program = of("slate", rollouts=2, turns=1).stage.programs["main"]
    calls = 0.0
    for seed in range(40):
        request, replies = RolloutRequest(TASK, key="t"), [THINK + FIRST, WRONG, " Bob</answer>"]
        _, group = played(program, replies, tags, lambda query: HOME, request=request, seed=seed)
        calls += group.episodes[0].cost.get("calls", 0)
    assert 29 <= calls < 40  # of 40 about 35


def test_an_answer_forced_after_the_budget_is_neither_scored_nor_learned(tags):
    stage = of("slate", rollouts=2, turns=1, eta=0.0, beta=0.0).stage
    replies = [THINK + FIRST, WRONG, " Bob</answer>"]
    context, group = played(
        stage.programs["main"], replies, tags, lambda query: HOME, request=RolloutRequest(TASK, key="t")
    )
    (episode,) = group.episodes
    assert episode.answer == "Bob" and len(episode.trajectories) == 2
    found = asyncio.run(score(stage.reward[0], [group], context))["reward"]
    assert [s.value for s in found.values()] == pytest.approx([2.0, -1.9])
    assert context.tokenizer.decode(episode.tree.id).endswith("</information><answer> Bob</answer>")
    whole = of("slate", truncated=False, turns=1, beta=0.0).stage
    got = scored(whole.reward[0], whole.programs["main"], [THINK + FIRST, RIGHT], tags, TASK, engine=lambda query: HOME)
    assert got.value == 2.0 and "answer" not in got.parts


def test_siblings_are_compared_with_each_other_and_learn_their_own_step_alone(tags):
    stage, context, group = two_steps(tags)
    group.scores.update(asyncio.run(score(stage.reward[0], [group], context)))
    examples = stage.credit[0](groups=[group])
    keys = [e.key for e in examples]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    index = np.array([0, 0, 1, 1])
    rewards = [float(e.given["reward"][1]) for e in examples]
    adv = stage.credit[1](reward=rewards, group=index)["adv"].values
    # (2 - 0.05) / std(2, -1.9) with n - 1: 1.95 / 2.758; the second pair differs by more, as far apart in its own
    assert adv == pytest.approx([0.7071, -0.7071, 0.7071, -0.7071], abs=1e-3)
    tree = group.episodes[0].tree
    ids = [[tree.id[tree.begin[s.source[1]] :][s.start : s.stop] for s in e.segments if s.learn] for e in examples]
    learned = ["".join(context.tokenizer.decode(run) for run in runs) for runs in ids]
    assert learned == [THINK + FIRST, WRONG, RIGHT, WRONG]


def test_without_the_judge_a_right_answer_alone_is_worth_anything(tags):
    program = of("slate", rollouts=2, turns=2, judge=False, early=0.5, eta=0.5).stage.programs["main"]
    assert program.args["eta"] == 0.5 and program.args["early"] == 0.5
    replies = [THINK + FIRST] * 2 + [RIGHT, WRONG]
    _, group = played(program, replies, tags, lambda query: HOME, request=RolloutRequest(TASK, key="t"))
    tree = group.episodes[0].tree
    assert [tree.number(t.leaf.node, "payoff") for t in group.episodes[0].trajectories] == [0.0, 0.0, 1.0, 0.0]
    assert worth({"answer": 1.0}, 0, 2, 0.5, True) == 1.5


def test_whole_episodes_have_the_sum_of_the_same_scores(tags):
    stage = of("slate", truncated=False, turns=2, beta=0.0).stage
    got = scored(stage.reward[0], stage.programs["main"], [THINK + FIRST, RIGHT], tags, TASK, engine=lambda query: HOME)
    assert got.value == pytest.approx(2.0 + 2.05)
    assert got.parts == {"searches": 1.0, "thought": 1.0, "query": 1.0, "answer": 1.0}
    got = scored(stage.reward[0], stage.programs["main"], [WRONG], tags, TASK)
    assert got.value == pytest.approx(-2.0 + 0.1)
