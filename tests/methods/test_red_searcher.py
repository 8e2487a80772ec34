"""REDSearcher by hand: which questions are asked, what atomic skills are made of, and in which order all is learned."""

from __future__ import annotations

import re

import pytest
from support.agents import played, scored
from support.battery import of

from selfteach.core import BadValue, Document, RolloutRequest, Task, TaskSource
from selfteach.core.random_keys import generator
from selfteach.methods.red_searcher import SKILLS, atomic_skills, shaped_tasks, skill_item, stated
from selfteach.tasks.fact_graph import fact_graph

HOME, MAYOR, NOISE = "the home of Ann is Ulm.", "the mayor of Ulm is Bob.", "the river of Cid is Po."
TASK = Task(
    "t",
    "question: what is the mayor of the home of Ann?\n",
    ("Bob",),
    tags={
        "chain": (HOME, MAYOR),
        "keywords": (("home of Ann", "Ann home"), ("mayor of Ulm", "Ulm mayor")),
        "sub_questions": ("the home of Ann", "the mayor of Ulm"),
    },
)
ASK, RIGHT, WRONG = "<search>home of Ann</search>", "<answer> Bob</answer>", "<answer> Po</answer>"


def shaped(topology, dispersion):
    """A source whose tasks have these tags in turns."""
    tags = [{"topology": t, "dispersion": d} for t, d in zip(topology, dispersion, strict=True)]
    return TaskSource("shaped", train=lambda i: Task(str(i), "", tags=tags[i % len(tags)]), test=())


def asked(source, steps=2, **args):
    part, state, out = shaped_tasks(**args), 0, []
    for _ in range(steps):
        requests, state = part(n=2, rollouts=3, finished_rounds=[], source=source, seed=0, state=state)
        assert part(n=2, rollouts=3, finished_rounds=[[]], source=source, seed=0, state=state) == ([], state)
        out += [r.task for r in requests]
    return out


def test_only_questions_of_the_right_shape_with_scattered_evidence_are_asked():
    source = shaped((1, 2, 4, 6, 7), (1.0, 0.5, 0.4, 1.0, 1.0))
    found = asked(source, easiest=2, hardest=6, dispersion=0.5)
    assert {t.tags["topology"] for t in found} == {
        2,
        6,
    }  # 1 and 7 are out of bounds, 4 is on few pages
    assert len({t.id for t in found}) == 4  # each once
    assert {t.tags["topology"] for t in asked(source, 3, easiest=4, hardest=7, dispersion=0.0)} == {4, 6, 7}
    assert len(asked(TaskSource("plain", train=lambda i: Task(str(i), ""), test=()))) == 4  # without tags
    with pytest.raises(BadValue, match="move the bounds"):
        asked(source, easiest=8, hardest=9)


@pytest.mark.parametrize(
    "skill,prompts,completions",
    [
        # what is to be found first, and what next
        ("plan", {TASK.prompt}, {(ASK, f"<information>{HOME}</information>", "<search>mayor of Ulm</search>")}),
        (
            "call",
            {"question: what is the home of Ann?\n", "question: what is the mayor of Ulm?\n"},
            {(ASK,), ("<search>mayor of Ulm</search>",)},
        ),
        (
            "ground",
            {f"<search>{q}</search><information>{NOISE} {s}</information>" for q, s in (("home of Ann", HOME),)}
            | {f"<search>{q}</search><information>{s} {NOISE}</information>" for q, s in (("home of Ann", HOME),)}
            | {f"<search>mayor of Ulm</search><information>{NOISE} {MAYOR}</information>"}
            | {f"<search>mayor of Ulm</search><information>{MAYOR} {NOISE}</information>"},
            {("<answer> Ulm</answer>",), ("<answer> Bob</answer>",)},
        ),
    ],
)
def test_an_atomic_skill_is_one_step_of_an_agent(skill, prompts, completions):
    made = {skill_item(TASK, skill, generator(0, i), lambda: [NOISE]) for i in range(60)}
    assert {prompt for prompt, _ in made} == prompts and {said for _, said in made} == completions


def test_a_skill_is_asked_as_the_task_asks():
    asked = Task("t", [{"role": "user", "content": "who?"}], ("Bob",), tags=TASK.tags)
    assert skill_item(asked, "plan", generator(0), list)[0] == asked.prompt
    ((message,), said) = skill_item(asked, "call", generator(0), list)
    assert message["role"] == "user" and message["content"].startswith("question: what is the") and len(said) == 1


def test_what_a_page_says_is_read_off_it():
    assert stated("home of Ann", "a friend of Ann is Bob and Cid.") == "Bob and Cid"
    assert stated("person whose home is Ulm", HOME) == "Ann"


def test_skills_come_in_turns_from_the_task_s_own_facts():
    source = fact_graph(entities=100, relations=6, hops=(2,), n_test=10)
    part = atomic_skills(distractors=1)
    requests, state = part(n=6, finished_rounds=[], source=source, seed=3, state=0)
    assert [r.task.tags["kind"] for r in requests] == [*SKILLS, *SKILLS] and state == 6
    facts = {d.text for d in source.corpus()}
    for r in requests[2::3]:
        page = re.findall(r"[^.>]+\.", r.task.prompt)
        assert len(page) == 2 and {s.strip() for s in page} <= facts  # the fact, and one other
        assert r.task.data[0][9:-9] in r.task.prompt
    assert part(n=6, finished_rounds=[[]], source=source, seed=3, state=6) == ([], 6)
    again, _ = part(n=6, finished_rounds=[], source=source, seed=3, state=6)
    assert {r.task.id for r in again}.isdisjoint(r.task.id for r in requests)
    with pytest.raises(BadValue, match="no documents"):
        part(n=1, finished_rounds=[], source=shaped((1,), (1.0,)), seed=0, state=0)
    bare = TaskSource("bare", train=lambda i: Task(str(i), ""), test=(), corpus=lambda: (Document("Ann", HOME),))
    with pytest.raises(BadValue, match="keywords"):
        part(n=1, finished_rounds=[], source=bare, seed=0, state=0)


def test_an_expert_looks_for_every_fact_and_what_it_finds_is_not_learned(tags):
    source = fact_graph(entities=100, relations=6, hops=(2,), ways=(0.0, 0.0, 0.0, 1.0), practised=0.0, n_test=10)
    task = source.experts(0)
    said, seen = "".join(task.data[::2]), "".join(task.data[1::2])
    assert all(f"<information>{fact}</information>" in seen for fact in task.tags["chain"])
    assert said.count("<search>") == 2 and f"<answer> {task.answer[0]}</answer>" in said
    program = of("red_searcher").stages[1].programs["main"]
    context, group = played(program, [], tags, request=RolloutRequest(task, key="t"))
    path = context.path(group.episodes[0].trajectories[0].leaf)
    learned = context.tokenizer.decode([i for i, own in zip(path.ids, path.action_mask, strict=True) if own])
    assert learned.startswith(said[:20]) and "<information>" not in learned
    assert all("<search>" not in source.demos(i).data[0] for i in range(20))  # the start is not shown any


@pytest.mark.parametrize(
    "replies,value,parts", [([ASK, RIGHT], 1.0, (1, 1, 1)), ([ASK, ASK, "<think>" + WRONG], 0.0, (0, 0, 2))]
)
def test_the_outcome_alone_is_rewarded(tags, replies, value, parts):
    stage = of("red_searcher").stage
    got = scored(stage.reward[0], stage.programs["main"], replies, tags, TASK)
    assert got.value == value and tuple(got.parts[n] for n in ("answer", "format", "searches")) == parts
    assert got.parts["facts"] == 2


def test_first_the_pieces_then_the_whole_then_rl():
    made = of("red_searcher", mid_steps=7, sft_steps=5, pool=9, batch=4, teach_lr=1e-2, distractors=3, turns=4)
    mid, shown, main = made.stages
    assert [s.name for s in made.stages] == ["mid", "trajectories", "main"] and (mid.until, shown.until) == (7, 5)
    assert mid.select.args == {"distractors": 3} and shown.select.args == {"pool": 9}
    assert [s.groups for s in (mid, shown)] == [4, 4] and all(s.updates[0].lr == 1e-2 for s in (mid, shown))
    assert main.programs["main"].args["turns"] == 4
    bounds = of("red_searcher", easiest=1, hardest=3, dispersion=0.2).stage.select.args
    assert bounds == {"easiest": 1, "hardest": 3, "dispersion": 0.2}
    assert [s.name for s in of("red_searcher", mid_steps=0, sft_steps=0).stages] == ["main"]
