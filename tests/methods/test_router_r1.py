"""Router-R1 by hand: experts, their prices, and a reward with form, outcome and relative cost."""

from __future__ import annotations

import asyncio

import pytest
from support.agents import ANN, played
from support.battery import of

from selfteach.core import RolloutRequest
from selfteach.core.blocks import initial_state
from selfteach.core.scoring import score
from selfteach.core.task import Document, TaskSource
from selfteach.methods.router_r1 import cheapness
from selfteach.tools.experts import EXPERTS, PRICE, ask_expert

HOME, RIVER = "the home of Ann is Ulm.", "the river of Ulm is Po."
CORPUS = [Document("Ann", HOME), Document("Bea", "the home of Bea is Rom."), Document("Ulm", RIVER)]


@pytest.fixture
def ask():
    source = TaskSource("facts", train=lambda i: ANN, test=(ANN,), corpus=lambda: CORPUS)
    return ask_expert(luck=0.0)(source=source)


def test_an_expert_is_right_about_what_it_knows_and_has_its_price(ask):
    assert ask("scribe: home of Ann") == HOME == ask("sage: home of Ann") == ask("sage : Ann home")
    assert ask("herald: river of Ulm") == RIVER
    assert ask("herald: home of Ann") == ask("parrot: home of Ann") == "the home of Ann is Rom."  # the other home
    prices = [ask(f"{e.name}: home of Ann").counts[PRICE] for e in EXPERTS]
    assert prices == [6.0, 6.0, 24.0, 3.0]  # six words at 1, 1, 4 and 0.5


@pytest.mark.parametrize("query", ["home of Ann", "oracle: home of Ann", "scribe:", ""])
def test_whom_nobody_knows_is_told_so_and_costs_nothing(ask, query):
    nobody = "there is no such expert; ask one of scribe, herald, sage, parrot, as in scribe: query."
    assert ask(query) == nobody and ask(query).counts[PRICE] == 0.0


THINK, RIGHT, WRONG = "<think>home.</think>", "<answer> Ulm</answer>", "<answer>x</answer>"
DEAR, CHEAP = (f"{THINK}<search>{e}: home of Ann</search>" for e in ("sage", "scribe"))


def value(tags, ask, replies, costs=(), **args):
    stage = of("router_r1", **args).stage
    program = stage.programs["main"].replace(answerer="search")
    context, group = played(program, replies, tags, ask, RolloutRequest(ANN, key="t"))
    reward = stage.reward[0]
    state = [{**initial_state(reward), "costs": list(costs)}]
    (found,) = asyncio.run(score(reward, [group], context, state=state))["reward"].values()
    return found, state[0]["costs"]


def test_without_a_price_only_the_outcome_counts(tags, ask):
    assert value(tags, ask, [DEAR, RIGHT])[0].value == 1.0
    assert value(tags, ask, [DEAR, WRONG])[0].value == 0.0


def test_a_right_answer_is_worth_more_the_less_it_cost_of_late(tags, ask):
    before = [0.0, 10.0] * 10  # 5 % and 95 % quantiles of these and one between are 0 and 10
    cheap, costs = value(tags, ask, [CHEAP, RIGHT], before, alpha=0.5)
    # sqrt(6) = 2.449: C = 1 - 0.2449
    assert cheap.value == pytest.approx(0.5 + 0.5 * (1 - 6**0.5 / 10)) and costs == [*before, 6**0.5]
    dear, _ = value(tags, ask, [DEAR, RIGHT], before, alpha=0.5)
    assert dear.value == pytest.approx(0.5 + 0.5 * (1 - 24**0.5 / 10)) and dear.parts["price"] == 24.0
    assert value(tags, ask, [CHEAP, WRONG], before, alpha=0.5)[0].value == 0.0
    assert value(tags, ask, [RIGHT.replace("<", THINK + "<", 1)], alpha=0.5)[0].value == 0.5 + 0.5 * 0.5  # all equal


def test_only_so_many_costs_are_remembered(tags, ask):
    assert value(tags, ask, [CHEAP, RIGHT], [1.0, 2.0, 3.0], window=3)[1] == [2.0, 3.0, 6**0.5]
    assert cheapness([5.0, 0.0, 9.0]) == 0.0 and cheapness([5.0, 9.0, 0.0]) == 1.0  # outside of the quantiles


@pytest.mark.parametrize(
    "replies",
    [
        [RIGHT],  # no thought
        [CHEAP, "<think>" + RIGHT],  # not closed
        [f"{THINK}<search>home of Ann</search>", RIGHT],  # nobody is asked
        [CHEAP],  # no answer
    ],
)
def test_the_form_decides_first(tags, ask, replies):
    found, _ = value(tags, ask, [*replies, "-"], alpha=0.5)
    assert found.value == -1.0 and found.parts["format"] == 0.0
