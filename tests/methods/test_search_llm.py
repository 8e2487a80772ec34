"""SearchLLM by hand: what is judged, and what a violated bottom line leaves of behaviour."""

from __future__ import annotations

import asyncio

import pytest
from support.agents import played
from support.battery import of

from selfteach.core import Ref, RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.core.search_record import Search
from selfteach.methods.search_llm import behaviour_of, is_grounded

HOME, MAYOR, NOISE = "the home of Ann is Ulm.", "the mayor of Ulm is Bob.", "the river of Cid is Po."
FOUND = {"home of Ann": HOME, "mayor of Ulm": MAYOR}
TASK = Task("t", "question: what is the mayor of the home of Ann?\n", ("Bob",), tags={"chain": (HOME, MAYOR)})
HOMES, MAYORS = "<search>home of Ann</search>", "<search>mayor of Ulm</search>"
CITES, BOB, CID = "<cite> Ann, Ulm</cite>", "<answer> Bob</answer>", "<answer> Cid</answer>"
KEPT = {"grounded": 1.0, "formed": 1.0, "correct": 1.0, "violated": 0.0}
FULL = {"coverage": 1.0, "focus": 1.0, "brevity": 1.0, "citation_precision": 1.0}
WRONG = {"grounded": 0.0, "formed": 1.0, "correct": 0.0, "violated": 1.0}
ONE = (0.01 / 1.01) ** (1 / 3)  # what one violated bottom line of three leaves: 0.215
ALL_OF_IT = {name: FULL[name] for name in ("coverage", "focus", "brevity")}


def searches(*found):
    return [Search("", "", text, Ref("e", 0)) for text in found]


@pytest.mark.parametrize(
    "replies,args,value,parts",
    [
        ([HOMES, MAYORS, CITES + BOB], {}, 1.0, {**KEPT, **FULL}),
        # nothing cited: it covers nothing, and keeps the bottom line: (0 + 0 + 1) / 3
        ([HOMES, MAYORS, BOB], {}, 1 / 3, {**KEPT, "coverage": 0.0, "focus": 0.0, "brevity": 1.0}),
        ([HOMES, MAYORS, BOB], {"behaviour": 0.6}, 0.6, {**KEPT, "coverage": 0.0, "focus": 0.0, "brevity": 1.0}),
        # the same search twice: two facts in three searches
        ([HOMES, HOMES, MAYORS, CITES + BOB], {}, (2 + 2 / 3) / 3, {**KEPT, **FULL, "brevity": 2 / 3}),
        # right without a search: not grounded, and nothing behaves
        (
            [BOB],
            {},
            0.0,
            {**KEPT, "grounded": 0.0, "violated": 1.0, "coverage": 0.0, "focus": 0.0, "brevity": 0.0},
        ),
        # full behaviour, and a thought that is not closed: one of three; a wrong answer that nothing states: two
        (["<think>" + HOMES, MAYORS, CITES + BOB], {}, ONE, {**KEPT, **FULL, "formed": 0, "violated": 1}),
        (["<think>" + HOMES, MAYORS, CITES + BOB], {"floor": 0.0}, 0.0, {**KEPT, **FULL, "formed": 0, "violated": 1}),
        ([HOMES, MAYORS, CITES + CID], {}, ONE**2, {**FULL, **WRONG}),
        # in a sum of six scores it loses two
        ([HOMES, MAYORS, CITES + CID], {"aggregate": "sum"}, 4 / 6, {**FULL, **WRONG}),
        ([HOMES, MAYORS, CITES + CID], {"aggregate": "sum", "behaviour": 0.5}, 2.5 / 4.5, {**FULL, **WRONG}),
    ],
)
def test_behaviour_counts_as_far_as_the_bottom_line_is_kept(tags, replies, args, value, parts):
    stage = of("search_llm", **args).stage
    engine = lambda query: FOUND.get(query, NOISE)  # noqa: E731
    context, group = played(stage.programs["main"], replies, tags, engine, RolloutRequest(TASK, key="t"))
    (end,) = asyncio.run(score(stage.reward[0], [group], context))["reward"].values()
    assert end.value == pytest.approx(value) and end.parts == pytest.approx(parts)


def test_what_is_grounded_was_found():
    seen = searches(HOME, MAYOR)
    assert is_grounded("Bob", ["Ann", "Ulm"], seen) and is_grounded("Bob", [], seen)
    assert not is_grounded("Bob", [], searches(HOME)) and not is_grounded("Bob", ["Cid"], seen)
    assert not is_grounded("Bo", [], seen) and not is_grounded(None, [], seen)


def test_coverage_needs_the_fact_found_and_its_page_cited_and_focus_minds_what_else_is_cited():
    assert behaviour_of(["Ulm"], searches(HOME, MAYOR), TASK) == ALL_OF_IT
    assert behaviour_of(["Ann"], searches(HOME, MAYOR), TASK)["coverage"] == 0.5
    assert behaviour_of(["Ann", "Ulm"], searches(HOME, NOISE), TASK)["coverage"] == 0.5
    assert behaviour_of(["Ann", "Ulm", "Cid", "Po"], searches(HOME, NOISE), TASK)["focus"] == 0.5
    assert behaviour_of([], [], TASK) == {"coverage": 0.0, "focus": 0.0, "brevity": 0.0}


def test_hyper_parameters_reach_the_reward():
    made = of("search_llm", turns=7, aggregate="sum", behaviour=0.5, floor=0.1)
    assert made.stage.reward[0].args == {"aggregate": "sum", "behaviour": 0.5, "floor": 0.1}
    assert made.stage.programs["main"].args["turns"] == 7
