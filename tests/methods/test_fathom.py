"""Fathom's RAPO by hand: what is solved is dropped, what failed gets a success, and calls are labelled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from support.agents import ULM, played
from support.battery import of
from support.episodes import single_turn_group

from selfteach.core import Ref, RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.core.search_record import Search
from selfteach.methods.fathom import unsolved_questions, with_last_success
from selfteach.reward.call_labels import NOTHING, calls_of

HOME, MAYOR, LIVES = "the home of Ann is Ulm.", "the mayor of Ulm is Bob.", "Ann lives in Ulm."
ASK, AGAIN = "<search>home of Ann</search>", "<search>Ann home</search>"
RIGHT, WRONG = "<answer> Ulm</answer>", "<answer> Po</answer>"
SOURCE = SimpleNamespace(train=lambda i: Task(f"train/{i}", "p"))


def rounds(rights, groups, questions, prune=0.9):
    """(questions asked step by step, state), where a question's four episodes have the rewards rights(number)."""
    part, state, out = (
        unsolved_questions(questions=questions, prune=prune),
        {"round": 0, "at": 0, "left": [], "right": {}},
        [],
    )
    first = None
    for _ in range(groups):
        given = {"n": 2, "rollouts": 4, "source": SOURCE, "seed": 0}
        requests, state = part(finished_rounds=[], state=state, **given)
        numbers = [int(r.task.id.split("/")[1]) for r in requests]
        first = min(numbers) if first is None else min(first, *numbers)
        done = [single_turn_group([(5,)] * 4, rights(n), key=str(n)) for n in numbers]
        empty, state = part(finished_rounds=[done], state=state, **given)
        assert empty == []
        out.append(numbers)
    return out, state


def test_after_a_round_what_is_solved_is_not_asked_again():
    solved = {}

    def rights(number):
        return [1.1, 1.1, 1.1, 1.1] if solved.setdefault(number, len(solved) % 2 == 0) else [0.1, 1.1, 0.1, 0.1]

    asked, state = rounds(rights, 3, 4)
    assert sorted(asked[0] + asked[1]) == sorted(solved)  # each of four once
    assert sorted(asked[2]) == sorted(n for n, right in solved.items() if not right)  # the two that are left
    assert len(state["left"]) == 2 and state["round"] == 2
    asked, _ = rounds(rights, 4, 4, prune=0.0)
    assert sorted(asked[2] + asked[3]) == sorted(solved)  # nothing is dropped


def test_a_question_is_dropped_at_nine_of_ten_and_form_alone_solves_nothing():
    assert len(rounds(lambda n: [1.1, 1.1, 1.1, 0.1], 1, 2)[1]["left"]) == 2  # three of four
    assert len(rounds(lambda n: [1.1, 1.1, 1.1, 0.1], 1, 2, prune=0.75)[1]["left"]) == 0
    assert len(rounds(lambda n: [0.1] * 4, 1, 2)[1]["left"]) == 2
    asked, _ = rounds(lambda n: [1.1] * 4, 2, 2)  # where none is left, all begin anew
    assert sorted(asked[0]) == sorted(asked[1])


def test_a_last_batch_is_filled_with_the_rounds_first_questions():
    asked, state = rounds(lambda n: [0.1] * 4, 2, 3)
    assert len(set(asked[0] + asked[1])) == 3 and asked[1][1] == asked[0][0] and state["round"] == 1


def test_a_group_that_failed_gets_the_questions_last_success():
    part, states = with_last_success(), [{"success": {}}]

    def step(n, *rewards, question="a"):
        group = single_turn_group([(n, i) for i in range(len(rewards))], rewards, key=f"{question}{n}")
        group = group._replace(request=RolloutRequest(Task(question, "p"), len(rewards), key=f"{question}{n}"))
        examples, after = part(groups=[group], state=states[-1])
        states.append(after)
        return examples

    def values(examples):
        return sorted(float(e.given["reward"][1]) for e in examples)

    assert values(step(1, 0.1, 0.0)) == [0.0, 0.1]  # no success yet
    assert values(step(2, 0.1, 1.1, 1.0)) == [0.1, 1.0, 1.1]
    third = step(3, 0.1, 0.1, 0.1)
    assert values(third) == [0.1, 0.1, 1.0]  # one of three is the last success, in this group
    assert {e.key for e in third} == {"a3"} and sum("/a2/" in e.name for e in third) == 1
    assert values(step(4, 0.1, 0.1, question="b")) == [0.1, 0.1]  # another question's is not taken


def test_few_groups_that_differ_weigh_as_much_as_all():
    scale = of("fathom").stage.credit[2]
    # one of three groups differs: its advantages count three times
    got = scale(adv=[0.7, -0.7, 0.0, 0.0, 0.0, 0.0], group=[0, 0, 1, 1, 2, 2])["adv"].values
    assert got == pytest.approx([2.1, -2.1, 0, 0, 0, 0])
    assert len(of("fathom", scaled=False).stage.credit) == 2
    assert of("fathom", replayed=False).stage.credit[0].name == "per_trajectory"


@pytest.mark.parametrize(
    "searches,verifications,counts",
    [
        ([], 1, (0, 0, 0, 0, 0)),
        ([("home of Ann", HOME), ("mayor of Ulm", MAYOR)], 1, (2, 0, 2, 0, 0)),
        ([("home of Ann", HOME), ("home of Ann", HOME)], 1, (1, 1, 1, 0, 1)),  # in the same words
        ([("home of Ann", HOME), ("Ann home", HOME)], 1, (1, 1, 1, 0, 1)),  # in like words, and the same is found
        ([("home of Ann", HOME), ("Ann home", LIVES)], 1, (2, 0, 1, 1, 0)),  # another page about the same: verified
        ([("home of Ann", HOME), ("Ann home", LIVES)], 0, (2, 0, 1, 0, 1)),
        ([("home of Ann", HOME), ("home of Ann", LIVES)], 1, (1, 1, 1, 1, 0)),  # the same words are a query in vain
        ([("home of Ann", HOME), ("Ann home", LIVES), ("Ann home now", MAYOR)], 1, (3, 0, 1, 1, 1)),  # once is enough
        ([("home of Ann", HOME), ("Ann home", LIVES), ("Ann home now", MAYOR)], 2, (3, 0, 1, 2, 0)),
        ([("home of Ann", HOME), ("mayor of Ulm", HOME)], 1, (2, 0, 1, 0, 1)),  # a page that was read before
        ([("home of Ann", NOTHING), ("mayor of Ulm", NOTHING)], 1, (2, 0, 0, 0, 2)),
    ],
)
def test_calls_are_labelled(searches, verifications, counts):
    assert calls_of([Search("", q, f, Ref("e", 0)) for q, f in searches], verifications) == counts


@pytest.mark.parametrize(
    "replies,args,value",
    [
        ([ASK, RIGHT], {}, 1.1),
        ([ASK, ASK, RIGHT], {}, 0.1 + 0.5),  # of four calls two are redundant
        ([ASK, AGAIN, RIGHT], {}, 0.1 + 0.5),
        ([ASK, ASK, ASK, ASK, RIGHT], {}, 0.1 + 0.5),  # six of eight: no less than one half
        ([ASK, WRONG], {"wanted_searches": 8, "wanted_pages": 16}, 0.1 + 0.2 / 8 + 0.2 / 16),
        ([ASK, WRONG], {"wanted_searches": 2, "wanted_pages": 1}, 0.1 + 0.1 + 0.2),
        ([ASK, ASK, WRONG], {}, 0.1),  # one unique less one redundant, twice
        ([ASK, ASK, ASK, WRONG], {}, 0.1 - 0.2 / 4 - 0.2 / 8),
        ([WRONG], {"form": 0.3}, 0.3),
        ([ASK, ASK, RIGHT], {"steered": False}, 1.0),
        ([ASK, ASK, RIGHT], {"steered": False, "form": 0.3}, 1.0),
        ([ASK, WRONG], {"steered": False}, 0.1),
        (["<think>" + WRONG], {"steered": False}, 0.0),  # not well formed
        (["<think>" + RIGHT], {"steered": False}, 0.9),
    ],
)
def test_a_right_answer_is_worth_less_for_calls_in_vain_and_a_wrong_one_more_for_useful_ones(
    tags, replies, args, value
):
    stage = of("fathom", **{"outcome_steps": 0, **args}).stage
    context, group = played(stage.programs["main"], replies, tags, lambda query: ULM)
    (end,) = asyncio.run(score(stage.reward[0], [group], context))["reward"].values()
    assert end.value == pytest.approx(value)


def test_the_first_steps_are_for_right_answers_alone():
    first, then = of("fathom", outcome_steps=7).stages
    assert first.until == 7 and first.reward[0].name == "counted_calls" and then.reward[0].name == "steered_calls"
    assert of("fathom").stages[0].until == 30 and len(of("fathom", outcome_steps=0).stages) == 1


def test_hyper_parameters_reach_the_reward():
    made = of("fathom", turns=9, outcome_steps=0, form=0.2, wanted_searches=4, wanted_pages=5, verifications=2)
    wanted = {"form": 0.2, "wanted_searches": 4, "wanted_pages": 5, "verifications": 2}
    assert made.stage.reward[0].args == wanted and made.stage.programs["main"].args["turns"] == 9
    assert of("fathom", questions=9, prune=0.5).stage.select.args == {"questions": 9, "prune": 0.5}
