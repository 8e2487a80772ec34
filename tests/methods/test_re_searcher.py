"""RE-Searcher by hand: goals, reflections, and a first query that loses a word."""

from __future__ import annotations

import pytest
from support.agents import ANN, ULM, played, scored
from support.battery import of

from selfteach.core import Task
from selfteach.core.random_keys import generator
from selfteach.methods.re_searcher import first_query_perturbed, with_a_word_less
from selfteach.tasks.agent_demos import states_what_is_sought

JUDGE = {"states": states_what_is_sought(statements={"home of Ann": ULM})}
TASK = Task("t", ANN.prompt, ANN.answer, judges=JUDGE)
GOAL, ASK = "<goal> the home of Ann</goal>", "<search>Ann home</search>"
YES, NO, RIGHT = "<reflect> True</reflect>", "<reflect>False</reflect>", "<answer> Ulm</answer>"
WRONG = "<answer> Rom</answer>"
NOISE = "the river of Ann is Ulm."


def value(tags, replies, found=ULM, task=TASK, **args):
    stage = of("re_searcher", **args).stage
    return scored(stage.reward[0], stage.programs["main"], replies, tags, task=task, engine=lambda query: found)


@pytest.mark.parametrize(
    "found,replies,reward,reflection",
    [
        (ULM, [GOAL + ASK, YES + RIGHT], 1 + 0.1, 1.0),
        (NOISE, [GOAL + ASK, YES + RIGHT], 1.0, 0.0),  # the gold answer is in it, and the goal is not met
        (NOISE, [GOAL + ASK, NO + RIGHT], 1 + 0.1, 1.0),
        (ULM, [GOAL + ASK, YES + GOAL + ASK, NO + RIGHT], 1 + 0.05, 0.5),  # one of two
        (ULM, [ASK, YES + RIGHT], 1 - 0.2, 0.0),  # no goal: no form, and nothing that could be met
        (ULM, [GOAL + ASK, RIGHT], 1 - 0.2, None),  # no verdict
        (ULM, ["<goal> the sea of Bob</goal>" + ASK, NO + RIGHT], 1 + 0.1, 1.0),  # a goal that asks for no fact
        (ULM, ["<think>" + GOAL + ASK, YES + RIGHT], 1 - 0.2 + 0.1, 1.0),  # a tag left open: reflections count still
        (ULM, [RIGHT], 1.0, None),  # no search needs neither
        (ULM, [GOAL + ASK, YES + WRONG], 0.2 + 0.1, 1.0),
        (ULM, [ASK, YES + WRONG], 0.0, 0.0),
    ],
)
def test_rewards(tags, found, replies, reward, reflection):
    got = value(tags, replies, found)
    assert got.value == pytest.approx(reward) and got.parts.get("reflection") == reflection


def test_without_a_judge_a_goal_is_met_where_a_gold_answer_is_found(tags):
    assert value(tags, [GOAL + ASK, YES + RIGHT], NOISE, ANN).parts["reflection"] == 1.0


def test_weights_are_hyper_parameters(tags):
    got = value(tags, [GOAL + ASK, YES + RIGHT], format=0.0, reflection=0.5, turns=2, beta=0.0)
    assert got.value == 1.5


def test_the_first_query_alone_loses_a_word(tags):
    asked: list[str] = []

    def engine(query: str) -> str:
        asked.append(query)
        return "-"

    replies = ["<search>home of Ann</search>", "<search>home of Ann</search>", RIGHT]
    program = first_query_perturbed(answerer="search", turns=4, invalid="")
    _, group = played(program, replies, tags, engine)
    assert len(asked[0].split()) == 2 and asked[1] == "home of Ann" and group.episodes[0].answer == "Ulm"
    assert with_a_word_less("Ann", generator(0)) == "Ann"
    lost = {with_a_word_less("home of Ann", generator(i)) for i in range(20)}
    assert lost == {"of Ann", "home Ann", "home of"}
