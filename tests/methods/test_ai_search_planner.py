"""AI-SearchPlanner by hand: what a plan adds to a frozen generator's answer, how sensible it is, and what it costs."""

from __future__ import annotations

import asyncio

import pytest
from support.agents import played
from support.battery import of

from selfteach.core import Ref, RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.core.search_record import Search
from selfteach.methods.ai_search_planner import planned, reason_of

HOME, MAYOR, NOISE = "the home of Ann is Ulm.", "the mayor of Ulm is Bob.", "the river of Cid is Po."
FOUND = {"home of Ann": HOME, "mayor of Ulm": MAYOR}
TASK = Task(
    "t",
    "question: what is the mayor of the home of Ann?\n",
    ("Bob",),
    tags={"keywords": (("home of Ann", "Ann home"), ("mayor of Ulm", "Ulm mayor"))},
)
FIRST, AGAIN, THEN = (f"<search>{q}</search>" for q in ("home of Ann", "Ann home", "mayor of Ulm"))
THOUGHT = "<think>the home.</think>"
BOB, PO = " Bob.</think><answer> Bob</answer>", " Po.</think><answer> Po</answer>"


def outcome(tags, plan, generated, **args):
    """(score, context, group) of a plan, with what the generator says: without a document, of the question's, last."""
    stage = of("ai_search_planner", **{"turns": 4, "gain": 0.5, "process": 0.25, "alpha": 0.2, **args}).stage
    replies = [*generated[:-1], *plan, "<answer>", *generated[-1:]]
    context, group = played(
        stage.programs["main"],
        replies,
        tags,
        lambda query: FOUND.get(query, NOISE),
        RolloutRequest(TASK, key="t"),
        model_roles=("policy", "generator"),
    )
    (end,) = asyncio.run(score(stage.reward[0], [group], context))["reward"].values()  # the plan alone is rewarded
    return end, context, group


@pytest.mark.parametrize(
    "plan,generated,value",
    [
        # right, and wrong without: 1/2 + 1/2; both sub-questions in two queries: 1/4; two of four turns: - 1/10
        ([FIRST, THEN], [PO, PO, BOB], 1.0 + 0.25 - 0.1),
        ([FIRST, THEN], [PO, BOB, BOB], 0.5 + 0.25 - 0.1),  # as right as what the question finds
        ([FIRST, THEN], [BOB, PO, BOB], 0.5 + 0.25 - 0.1),  # as right as without any document
        ([FIRST, THEN], [BOB, PO, PO], 0.0 + 0.25 - 0.1),  # the plan led it astray
        ([], [PO, PO, BOB], 1.0),
        # one sub-question in two queries, of two: 2 / (2 + 2)
        ([FIRST, AGAIN], [PO, PO, PO], 0.5 + 0.25 * 0.5 - 0.1),
        # both in three queries: 4 / (3 + 2)
        ([FIRST, AGAIN, THEN], [PO, PO, PO], 0.5 + 0.25 * 0.8 - 0.15),
    ],
)
def test_a_plan_is_paid_for_what_it_adds_for_its_reason_and_pays_its_price(tags, plan, generated, value):
    end, *_ = outcome(tags, plan, generated)
    assert end.value == pytest.approx(value)
    assert end.parts["searches"] == len(plan) and end.parts["cost"] == len(plan) / 4


def test_a_plan_with_which_no_other_answer_is_compared_is_paid_in_full(tags):
    _, context, group = outcome(tags, [FIRST, THEN], [PO, PO, BOB])
    (episode,) = group.episodes
    episode.trajectories = [t for t in episode.trajectories if t.role not in ("rag", "closed")]
    (end,) = asyncio.run(score(planned(turns=4, alpha=0.0, process=0.0), [group], context))["reward"].values()
    assert end.value == 1.0 and end.parts["reference"] == 0.0


def test_parts_of_the_reward_are_hyper_parameters(tags):
    assert outcome(tags, [FIRST], [BOB], gain=0.0, process=0.0, alpha=0.0)[0].value == 1.0  # without a reference
    assert outcome(tags, [FIRST], [PO, PO, BOB], gain=1.0, process=0.0, alpha=0.4)[0].value == pytest.approx(0.9)
    assert of("ai_search_planner", alpha=0.3).stage.reward[0].args["alpha"] == 0.3


def test_the_generator_reads_what_the_plan_found_and_nothing_of_it_is_learned(tags):
    _, context, group = outcome(tags, [THOUGHT + FIRST, THEN], [PO, PO, BOB])
    episode = group.episodes[0]
    assert episode.answer == "Bob"
    learned = [t for t in episode.trajectories if t.learn is not None]
    assert [context.whole_text(t.leaf) for t in learned] == [
        f"{THOUGHT}{FIRST}<information>{HOME}</information>{THEN}<information>{MAYOR}</information><answer>"
    ]
    read = {t.role: context.path(t.leaf) for t in episode.trajectories if t.learn is None}
    told = {role: context.tokenizer.decode(path.ids) for role, path in read.items()}
    assert f"{THOUGHT}{FIRST}<information>{HOME}</information>{THEN}<information>{MAYOR}" in told["generator"]
    assert "<information>" not in told["closed"] and NOISE in told["rag"]  # what the question itself finds


def test_reason_is_the_f1_of_queries_against_sub_questions():
    def plan(*queries):
        return reason_of([Search("", q, "", Ref("e", 0)) for q in queries], TASK)

    assert plan() == 0.0 and plan("sea of Cid") == 0.0
    assert plan("home of Ann") == pytest.approx(2 / 3)
    assert plan("home of Ann", "Ulm mayor") == 1.0
    assert plan("home of Ann", "sea of Cid", "Ulm mayor") == pytest.approx(0.8)


def test_hyper_parameters_reach_planner_and_reward():
    made = of("ai_search_planner", turns=6, gain=0.3, process=0.2, alpha=0.1)
    assert made.stage.reward[0].args == {"turns": 6, "gain": 0.3, "process": 0.2, "alpha": 0.1}
    assert made.stage.programs["main"].args["turns"] == made.decode["reader"].args["turns"] == 6
