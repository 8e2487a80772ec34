"""ASearcher by hand: which version of a question is asked, what an episode is worth, and what a step learns from."""

from __future__ import annotations

import numpy as np
import pytest
from support.agents import scored
from support.battery import of

from selfteach.core import RolloutGroup, Task, TaskSource
from selfteach.core.random_keys import generator
from selfteach.curriculum.select import first_task_index
from selfteach.methods.asearcher import edited_questions

ASK, RIGHT = "<search>home of Ann</search>", "<answer> Ulm</answer>"
VERSIONS = 3
SOURCE = TaskSource("edited", train=lambda i: Task(str(i), "", ("Ulm",)), test=(), task_options={"edits": VERSIONS - 1})
FIRST = first_task_index(0) * VERSIONS


def select(rounds, state=0, source=SOURCE, n=3, **args):
    part = edited_questions(**args)
    return part(n=n, rollouts=4, finished_rounds=rounds, source=source, seed=0, state=state)


def answered(request, *answers):
    """The finished group of a request, whose episodes gave these answers."""
    episodes = [type("Episode", (), {"answer": a})() for a in answers]
    return RolloutGroup(request, episodes, {}, request.task.id)


def at(requests):
    """(question, version) of each request."""
    return [divmod(int(r.task.id) - FIRST, VERSIONS) for r in requests]


def test_a_question_is_edited_on_until_nobody_knows_it():
    drawn = [int(generator(0, "edits", i).integers(VERSIONS)) for i in range(20)]
    first, state = select([], n=20, checks=5)
    assert at(first) == list(enumerate(drawn)) and set(drawn) == {0, 1, 2}  # at some number of edits, drawn
    assert all((r.n, r.program) == (5, "closed") for r in first) and state == 0
    simple = next(r for r in first if at([r])[0][1] == 0)
    hard = next(r for r in first if at([r])[0][1] == 2)
    other = next(r for r in first if r not in (simple, hard))
    rounds = [[answered(simple, "Po", "Ulm"), answered(hard, "Ulm"), answered(other, "Po", None)]]
    second, _ = select(rounds)
    assert at(second) == [(at([simple])[0][0], 1)]  # the hard one has no further version
    rounds.append([answered(second[0], "Ulm")])
    third, _ = select(rounds)
    assert at(third) == [(at([simple])[0][0], 2)]
    rounds.append([answered(third[0], "Po")])
    asked, state = select(rounds)
    assert sorted(at(asked)) == sorted([at(third)[0], at([hard])[0], at([other])[0]]) and state == 3
    assert all((r.n, r.program) == (4, "main") for r in asked)
    assert select([*rounds, [RolloutGroup(asked[0], [], {}, "m")]], state) == ([], 3)


def test_without_checks_a_version_is_asked_as_drawn_and_without_synthesis_the_first():
    drawn, state = select([], checks=0)
    assert at(drawn) == [(i, int(generator(0, "edits", i).integers(VERSIONS))) for i in range(3)] and state == 3
    seeds, state = select([], state=2, synthesis=False)
    assert at(seeds) == [(2, 0), (3, 0), (4, 0)] and state == 5 and seeds[0].program == "main"
    plain = TaskSource("plain", train=SOURCE.train, test=())  # a task that edits nothing
    assert [int(r.task.id) for r in select([], source=plain, checks=0)[0]] == [
        first_task_index(0) + i for i in range(3)
    ]


@pytest.mark.parametrize(
    "replies,value",
    [
        ([ASK, RIGHT], 1.0),
        ([ASK, "<answer> the Ulm lake</answer>"], 2 / 3),  # of two words one is right
        ([ASK, "<think>so." + RIGHT], 0.0),  # a thought left open
    ],
)
def test_an_answer_is_worth_its_f1_where_every_turn_is_well_formed(tags, replies, value):
    stage = of("asearcher", turns=3).stage
    assert scored(stage.reward[0], stage.programs["main"], replies, tags).value == pytest.approx(value)


def test_rewards_are_centred_by_group_and_whitened_over_the_batch():
    _, drop, centred, whitened = of("asearcher").stage.credit
    reward, group = np.array([1.0, 0.0, 0.5, 0.0, 1.0, 1.0]), np.array([0, 0, 1, 1, 2, 2])
    assert list(drop(reward=reward, group=group)["keep"].values) == [1, 1, 1, 1, 0, 0]  # the last group learns nothing
    adv = centred(reward=reward[:4], group=group[:4])["adv"].values
    assert list(adv) == [0.5, -0.5, 0.25, -0.25]
    # no group is divided by its own deviation: the second stays half as large as the first
    std = np.sqrt((2 * 0.25 + 2 * 0.0625) / 3)
    scaled = whitened(adv=adv, batch=np.zeros(4, int))["adv"].values
    assert scaled == pytest.approx([0.5 / std, -0.5 / std, 0.25 / std, -0.25 / std])


def test_hyper_parameters_reach_selection_program_and_loss():
    stage = of("asearcher", turns=5, checks=3, clip=0.3, weight_cap=4.0, minibatches=2).stage
    assert stage.programs["main"].args["turns"] == 5 and stage.select.args["checks"] == 3
    (update,) = stage.updates
    assert update.minibatches == 2 and update.terms[0].fn.args == {"low": 0.3, "high": 0.3, "cap": 4.0}
    assert stage.staleness == 4 and set(of("asearcher", synthesis=False).stage.programs) == {"main"}
