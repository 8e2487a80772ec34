"""R1-Searcher by hand: the rewards of both stages, and the advantages."""

from __future__ import annotations

import pytest
from support.agents import scored
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import single_turn_group

from selfteach.core import Task

THINK, ASK, RIGHT = "<think>t</think>", "<search>home of Ann</search>", "<answer> Ulm</answer>"


def value(tags, replies, stage=-1, task=None, **args):
    slots = of("r1_searcher", **args).stages[stage]
    more = {"task": task} if task else {}
    return scored(slots.reward[0], slots.programs["main"], replies, tags, **more)


@pytest.mark.parametrize(
    "replies,first,second",
    [
        ([THINK + ASK, RIGHT], 1.0, 1.0),
        ([THINK + ASK, "<answer>x</answer>"], 1.0, 0.0),  # the first stage does not look at the answer
        ([THINK + RIGHT], 0.5, 1.0),  # nor is a search asked for in the second
        ([ASK, RIGHT], 0.5, -1.0),  # no thought
        (["<think>t" + ASK, RIGHT], 0.5, -1.0),  # left open
        ([THINK + "<information>the home of Ann is Ulm.</information>" + RIGHT], 0.0, -1.0),  # its own result
        ([THINK + "<answer>" + RIGHT], 0.0, 2 / 3 - 2),  # one opened twice, which leaves a word more in it
        ([THINK + "so", RIGHT], 0.0, -1.0),  # a turn with neither a query nor an answer
        ([THINK + ASK, f"<answer>{'Ulm ' * 11}</answer>"], 0.5, 2 / 12 - 2),  # eleven words, of which F1 counts one
    ],
)
def test_what_both_stages_pay_for(tags, replies, first, second):
    assert value(tags, replies, 0).value == pytest.approx(first)
    assert value(tags, replies, 1).value == pytest.approx(second)


def test_an_answer_is_worth_the_words_that_it_shares(tags):
    po, replies = Task("t", "?", ("river Po",)), [THINK + "<answer>Po</answer>"]
    assert value(tags, replies, task=po).value == pytest.approx(2 / 3)  # 2 * 1 / (1 + 2)
    assert (
        value(tags, replies, task=po, match="exact").value == value(tags, replies, task=po, match="cover").value == 0.0
    )
    longer = [THINK + "<answer>the river Po it is</answer>"]  # 2 * 2 / (4 + 2), without the article
    assert [value(tags, longer, task=po, match=how).value for how in ("f1", "exact", "cover")] == [2 / 3, 0.0, 1.0]


def test_constants_are_hyper_parameters(tags):
    assert value(tags, [THINK + ASK, RIGHT], 0, retrieval=0.2, format=0.3).value == 0.5
    assert value(tags, [ASK, RIGHT], penalty=1.0).value == 0.0
    first, second = of("r1_searcher", invoke_steps=7, turns=2, beta=0.0).stages
    assert first.until == 7 and first.credit == second.credit and len(of("r1_searcher", invoke_steps=0).stages) == 1


@pytest.mark.parametrize("estimator,names", [("reinforce_baseline", ["center", "whiten"]), ("grpo", ["norm"])])
def test_estimators(estimator, names):
    assert [p.name for p in of("r1_searcher", estimator=estimator).stage.credit[1:]] == names


@pytest.mark.parametrize("stage", [0, 1])
def test_each_answer_weighs_as_much_as_any_other_whatever_its_length(stage):
    group = single_turn_group([(5, 5, 5), (6,)], [1.0, 0.0])
    # centred 1/2 (three times) and -1/2; over the four tokens the mean is 1/4, the std sqrt((3/16 + 9/16) / 3) = 1/2:
    # advantages 1/2 and -3/2; either answer weighs 1/2, a token of the first 1/6
    made = of("r1_searcher", beta=0.0)
    found = token_gradient(made.override(stages=(made.stages[stage],)), [group], [-1.0] * 4)
    assert found == pytest.approx([-1 / 12] * 3 + [3 / 4], rel=1e-5)
