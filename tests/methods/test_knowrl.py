"""KnowRL by hand: what is asked for, which tasks are judged, what agreement is worth, and what becomes an example."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.battery import of
from support.episodes import scripted_context, single_turn_group

from selfteach import task_source
from selfteach.core import BadValue, RolloutGroup, RolloutRequest, Task
from selfteach.core.blocks import initial_state
from selfteach.core.scoring import score
from selfteach.loop.episode import play
from selfteach.methods.knowrl import agreed_ability, name_and_judge, propose_task

SOURCE = task_source("self_knowledge", {"n_test": 50})
EASY, HARD = "add 2 1 3", "add 2 1 3 0 1 1 2 3"  # what demonstrations do 91 and 15 times of a hundred
YES, NO = "Feasible", "Infeasible"


def answered(request: RolloutRequest, answers: list[Any]) -> RolloutGroup:
    """The request's group with these answers."""
    group = single_turn_group([(5 + i,) for i in range(len(answers))], [None] * len(answers), request.task.id)
    for episode, answer in zip(group.episodes, answers, strict=True):
        episode.answer = answer
    return group._replace(request=request, scores={})


def select(finished: list[Any], state: Any = None, **how: Any) -> tuple[list[RolloutRequest], Any]:
    part = name_and_judge(**how)
    given: dict[str, Any] = {"n": 4, "rollouts": 3, "source": SOURCE, "seed": 0, "step": 0}
    return part(**given, finished_rounds=finished, state=state or initial_state(part))


def named(requests: list[RolloutRequest], *answers: list[str | None]) -> list[RolloutGroup]:
    return [answered(r, list(a)) for r, a in zip(requests, answers, strict=True)]


def test_half_of_the_prompts_ask_for_each_kind_and_show_examples_of_it():
    requests, _ = select([], proposals=2, examples=3)
    assert [(r.n, r.program, r.task.answer[0]) for r in requests] == [(2, "propose", YES), (2, "propose", NO)] * 2
    for r in requests:
        *shown, last = r.task.prompt.splitlines()
        (label,) = r.task.answer
        assert last == f"Name one more that is {label}." and len(shown) == 3
        assert all(SOURCE.questions.supported(s.removeprefix(f"{label}: "), (label,)) for s in shown)


def test_new_tasks_are_judged_once_and_what_is_agreed_on_becomes_an_example():
    requests, state = select([], proposals=2)
    tested = SOURCE.test[0].prompt.partition("\n")[0]
    groups = named(requests, [EASY, EASY], [EASY, HARD], [None, "add 9 9"], [tested, "add 2 3 1 1"])
    judging, _ = select([groups], state)
    texts = [(r.task.tags["question"], r.task.tags["named"], r.task.tags["true"]) for r in judging]
    assert texts == [(EASY, YES, YES), (HARD, NO, NO), ("add 2 3 1 1", NO, YES)] and {r.n for r in judging} == {3}
    assert judging[0].task.prompt == f"{EASY}\nFeasible or Infeasible?\n" and judging[0].cause == groups[0].key
    judged = [answered(r, a) for r, a in zip(judging, ([YES, YES, "?"], [NO, NO, NO], [YES, YES, YES]), strict=True)]
    done, state = select([groups, judged], state, bar=0.7)
    # two of three is below the bar; the third was named Infeasible and is agreed to be Feasible
    assert done == [] and state["agreed"] == {YES: [], NO: [HARD]}
    shown = select([], {**state, "agreed": {YES: [], NO: [HARD]}}, seeds=0)[0][1]
    assert shown.task.prompt.startswith(f"{NO}: {HARD}\n")
    assert select([groups, judged], state, bar=0.6)[1]["agreed"][YES] == [EASY]


def paid(consensus: Any = "majority") -> dict[tuple[str, int], tuple[float | None, dict[str, float]]]:
    """Rewards by (group, number): four judgements each of EASY, HARD and a task of a tie, and the three that named
    them.
    """
    tie = "add 2 3 1 1"
    requests, state = select([], proposals=2)
    groups = named(requests[:3], [EASY, None], [HARD, tie], [HARD, EASY])
    judging, _ = select([groups], state)
    said = {EASY: [YES, YES, YES, "Perhaps"], HARD: [YES, YES, NO, YES], tie: [YES, NO, YES, NO]}
    judged = [answered(r, said[r.task.tags["question"]]) for r in judging]
    names = [*("ABC"), *(g.request.task.tags["question"] for g in judged)]
    found = asyncio.run(score(agreed_ability(consensus=consensus), [*groups, *judged], None))["reward"]  # type: ignore[arg-type]
    return {
        (name, i): (found[e.trajectories[0].leaf].value, dict(found[e.trajectories[0].leaf].parts))
        for name, group in zip(names, [*groups, *judged], strict=True)
        for i, e in enumerate(group.episodes)
    }


def test_judgements_are_paid_for_agreeing_and_tasks_for_being_what_they_were_named_for():
    found = paid()
    value = {at: v for at, (v, _) in found.items()}
    # three of four say Feasible of both, whatever is true; of the tie nothing is the majority
    assert [value[EASY, i] for i in range(4)] == [0.75, 0.75, 0.75, 0.0]
    assert [value[HARD, i] for i in range(4)] == [0.75, 0.75, 0.0, 0.75]
    assert [value["add 2 3 1 1", i] for i in range(4)] == [0.0] * 4
    # EASY was named for Feasible; HARD for Infeasible and then for Feasible; nothing is what is no task
    assert [value["A", 0], value["A", 1], value["B", 0], value["B", 1], value["C", 0], value["C", 1]] == [
        *(0.75, 0.0, 0.0, 0.0, 0.75, 0.75)
    ]
    parts = {at: p for at, (_, p) in found.items()}
    assert [parts[HARD, i].get("true") for i in range(4)] == [0.0, 0.0, 1.0, 0.0]
    assert "true" not in parts[EASY, 3] and parts[EASY, 3]["told"] == 0.0 and parts[EASY, 0]["feasible"] == 1.0
    assert parts["B", 0]["named_true"] == 1.0 and parts["C", 0]["named_true"] == 0.0
    assert parts["A", 1] == {"valid": 0.0, "consistent": 0.0}


def test_the_control_pays_what_a_coin_says():
    found = paid("random")
    for name in (EASY, HARD):
        paid_for = {found[name, i][1]["feasible"] for i in range(4) if found[name, i][0]}
        assert len(paid_for) == 1, "one label, whatever the judgements say"
    with pytest.raises(BadValue, match="agreed_ability: consensus must be"):
        agreed_ability(consensus="no")(groups=[])  # type: ignore[arg-type]


def test_without_introspection_the_tasks_own_questions_are_judged():
    requests, state = select([], proposals=2, introspect=False)
    assert len(requests) == 8 and {r.program for r in requests} == {"main"} and state["asked"] == 8
    assert {r.task.tags["true"] for r in requests} == {YES, NO} and requests[0].task.tags["named"] is None
    assert select([[]], state, introspect=False) == ([], state)
    assert of("knowrl", introspect=False).stage.select.args["introspect"] is False
    with pytest.raises(BadValue, match="cannot put new questions"):
        name_and_judge()(
            n=1, rollouts=1, finished_rounds=[], source=replace(SOURCE, questions=None), seed=0, step=0, state={}
        )


def test_a_task_is_named_in_its_tags(letters):
    replies = iter(["<question> add 1 2 3</question>", "none"])
    context = scripted_context(propose_task(), lambda *_: next(replies), letters)
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "Q"), 2)]))
    assert sorted(str(e.answer) for e in group.episodes) == ["None", "add 1 2 3"]
