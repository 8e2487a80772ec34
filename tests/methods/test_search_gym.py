"""SearchGym by hand: its questions can be answered by its tools, and short ones come first."""

from __future__ import annotations

import pytest
from support.agents import scored
from support.battery import of

from selfteach.core import BadValue, History, Task, TaskSource
from selfteach.methods.search_gym import levelled_off, verified_tasks
from selfteach.tasks.fact_graph import fact_graph

WORLD = {"entities": 100, "relations": 6, "hops": (1, 2, 3), "n_test": 90}


def oracle(source, task):
    """Whether one who asks for each fact in turn finds all of them."""
    find = source.tools["search"](source=source)
    return all(fact in find(ways[0]) for fact, ways in zip(task.tags["chain"], task.tags["keywords"], strict=True))


def test_every_verified_question_is_answered_with_the_tools_alone():
    source = fact_graph(**WORLD, misaligned=0.3)
    tasks = [source.train(i) for i in range(200)]
    assert [t.tags["verified"] for t in tasks] == [oracle(source, t) for t in tasks]
    share = sum(t.tags["verified"] for t in tasks) / len(tasks)
    assert 0.35 < share < 0.65  # of one, two and three documents none is mistaken: 0.7, 0.49, 0.34
    assert source.test and all(oracle(source, t) for t in source.test)


def test_in_an_aligned_world_all_questions_are():
    source = fact_graph(**WORLD)
    assert all(oracle(source, t) and t.tags["verified"] for t in [*source.test, *(source.train(i) for i in range(100))])


def test_a_mistaken_document_states_another_object():
    facts = {d.text for d in fact_graph(**WORLD).corpus()}
    documents = [d.text for d in fact_graph(**WORLD, misaligned=0.3).corpus()]
    wrong = [d for d in documents if d not in facts]
    assert 0.2 < len(wrong) / len(documents) < 0.4
    assert all(any(d.rpartition(" is ")[0] == f.rpartition(" is ")[0] for f in facts) for d in wrong)


def asked(part, source, steps=3):
    state, out = 0, []
    for _ in range(steps):
        requests, state = part(n=4, rollouts=2, finished_rounds=[], source=source, seed=1, state=state)
        out += [r.task for r in requests]
        assert part(n=4, rollouts=2, finished_rounds=[[]], source=source, seed=1, state=state) == ([], state)
    return out


def test_only_verified_questions_of_few_facts_are_asked_each_once():
    source = fact_graph(**WORLD, misaligned=0.3)
    first = asked(verified_tasks(facts=1), source)
    assert {t.tags["difficulty"] for t in first} == {1} and all(t.tags["verified"] for t in first)
    assert len({t.id for t in first}) == 12
    every = asked(verified_tasks(verified=False), source, 8)
    assert not all(t.tags["verified"] for t in every) and {t.tags["difficulty"] for t in every} == {1, 2, 3}
    long = TaskSource("long", train=lambda i: Task(str(i), "", tags={"difficulty": 5}), test=())
    with pytest.raises(BadValue, match="larger value of facts"):
        asked(verified_tasks(facts=1), long)


def test_the_first_stage_ends_where_the_reward_levels_off():
    def over(*rewards, **args):
        return levelled_off(history=History(len(rewards), scalars={"reward/mean": list(rewards)}), **args)

    assert not over(0.1, 0.1, 0.2, 0.2, window=2, gain=0.05) and over(0.1, 0.1, 0.2, 0.2, window=2, gain=0.15)
    assert over(0.1, 0.2, 0.3, most_steps=3) and not over(window=1)
    first, then = of("search_gym", facts=1, window=3, gain=0.1, most_steps=9).stages
    assert first.until.args == {"window": 3, "gain": 0.1, "most_steps": 9} and first.select.args["facts"] == 1
    assert then.select.args.get("facts") is None and then.until is None
    assert [s.name for s in of("search_gym", curriculum=False).stages] == ["main"]


@pytest.mark.parametrize(
    "last,value,right",
    [
        ("<answer> Ulm</answer>", 1.0, 1.0),
        ("<answer> the Ulm lake</answer>", 2 / 3, 0.0),  # of two words one is right
        ("<think><answer> Ulm</answer>", 0.0, 1.0),
    ],
)
def test_a_well_formed_answer_is_worth_its_f1(tags, last, value, right):
    stage = of("search_gym").stages[-1]
    got = scored(stage.reward[0], stage.programs["main"], ["<search>home of Ann</search>", last], tags)
    assert got.value == pytest.approx(value) and got.parts["answer"] == right and got.parts["searches"] == 1.0


def test_hyper_parameters_reach_selection_and_program():
    first, then = of("search_gym", turns=5, verified=False, facts=3).stages
    assert first.select.args == {"verified": False, "facts": 3} and then.select.args == {"verified": False}
    assert then.programs["main"].args["turns"] == 5
