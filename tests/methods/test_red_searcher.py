"""REDSearcher by hand: which questions are asked, what atomic skills are made of, and in which order all is learned."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from support.agents import played, scored
from support.battery import Study, groups_of, of

from selfteach.core import BadValue, Document, RolloutRequest, Task, TaskSource
from selfteach.core.random_keys import generator
from selfteach.methods.red_searcher import (
    SKILLS,
    atomic_skills,
    planned_queries,
    shaped_tasks,
    skill_item,
    stated,
    treewidth,
)
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


CHAIN = (HOME, MAYOR, "the mentor of Bob is Cid.")
POND = "the river of Ulm is Po."
RING = (*CHAIN[:2], "the mentor of Bob is Ann.")  # two ways from Ann to Bob
FOUR = tuple(f"the friend of {a} is {b}." for a, b in combinations(("Ann", "Bob", "Cid", "Dan"), 2))

DIVIDED = tuple(
    fact
    for n, (a, b) in enumerate(combinations(("Ann", "Bob", "Cid", "Dan"), 2))
    for fact in (f"the home of {a} is U{n}.", f"the home of {b} is U{n}.")
)


def shaped(*shapes):
    """A source whose tasks have these facts and shares of pages in turns."""
    tags = [{"chain": facts, "dispersion": share} for facts, share in shapes]
    return TaskSource("shaped", train=lambda i: Task(str(i), "", tags=tags[i % len(tags)]), test=())


def asked(source, steps=2, **args):
    part, state, out = shaped_tasks(**args), 0, []
    for _ in range(steps):
        requests, state = part(n=2, rollouts=3, finished_rounds=[], source=source, seed=0, state=state)
        assert part(n=2, rollouts=3, finished_rounds=[[]], source=source, seed=0, state=state) == ([], state)
        out += [r.task for r in requests]
    return out


@pytest.mark.parametrize(
    "facts,width",
    [
        (CHAIN[:1], 1),
        (CHAIN, 1),  # however long
        ((HOME, "the home of Bob is Ulm.", POND), 1),  # what meets is no cycle yet
        (RING, 2),
        ((*RING, "the home of Cid is Dan."), 2),  # a part of it has one
        ((*CHAIN, "the mentor of Cid is Ann."), 2),  # two ways that part and meet again
        ((*FOUR[:4], FOUR[5]), 2),  # two cycles that share a fact
        (FOUR, 3),  # each of four with each
        (DIVIDED, 3),  # the same by way of others
        ((HOME, HOME, "the home of Ann is Ann."), 1),
        (("the friends of Ann are Bob and Cid.",), 1),
    ],
)
def test_topology_is_the_treewidth_of_the_facts(facts, width):
    assert treewidth(facts) == width


def test_only_entangled_questions_with_scattered_evidence_are_asked():
    # pages: 3, 3, 2 (two facts on one), 1 (all on one), 6
    source = shaped((CHAIN, 1.0), (RING, 1.0), (RING, 2 / 3), (RING, 1 / 3), (FOUR, 1.0))

    def found(steps=5, **args):
        tasks = asked(source, steps, **args)
        assert len({t.id for t in tasks}) == 2 * steps  # each once
        return {(t.tags["chain"], t.tags["dispersion"]) for t in tasks}

    assert found() == {(CHAIN, 1.0), (RING, 1.0), (RING, 2 / 3), (FOUR, 1.0)}  # 2 pages or more
    assert found(width=2) == {(RING, 1.0), (RING, 2 / 3), (FOUR, 1.0)}
    assert found(width=2, wanted_pages=3) == {(RING, 1.0), (FOUR, 1.0)}
    assert found(width=3) == {(FOUR, 1.0)}  # not the same as many facts
    assert len(found(wanted_pages=1)) == 5
    assert len(asked(TaskSource("plain", train=lambda i: Task(str(i), ""), test=()))) == 4  # without tags
    with pytest.raises(BadValue, match="move the bounds"):
        asked(source, width=4)


def test_pages_are_the_fewest_that_cover_a_question_and_some_joints_close_a_cycle():
    source = fact_graph(entities=100, relations=6, hops=(4,), joints=1, top=3, n_test=10)
    part, pages = shaped_tasks(width=2, wanted_pages=3), {d.text: d.title for d in source.corpus()}
    for request in part(n=3, rollouts=1, finished_rounds=[], source=source, seed=0, state=0)[0]:
        chain = request.task.tags["chain"]
        assert treewidth(chain) == 2 and len({pages[fact] for fact in chain}) >= 3


@pytest.mark.parametrize(
    "skill,prompts,completions",
    [
        # what is to be found first, and what next, before it is known that the home is Ulm
        ("plan", {TASK.prompt}, {(f"{ASK}<search>mayor of the home of Ann</search>",)}),
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
    made = {skill_item(TASK, skill, generator(0, i), [NOISE]) for i in range(60)}
    assert {prompt for prompt, _ in made} == prompts and {said for _, said in made} == completions


def test_a_skill_is_asked_as_the_task_asks():
    asked = Task("t", [{"role": "user", "content": "who?"}], ("Bob",), tags=TASK.tags)
    assert skill_item(asked, "plan", generator(0))[0] == asked.prompt
    ((message,), said) = skill_item(asked, "call", generator(0))
    assert message["role"] == "user" and message["content"].startswith("question: what is the") and len(said) == 1


@pytest.mark.parametrize(
    "question,facts,plan",
    [
        (  # what is found is described by how it is found, however far back
            "the mentor of the mayor of the home of Ann",
            {"home of Ann": HOME, "mayor of Ulm": MAYOR, "mentor of Bob": CHAIN[2]},
            ["home of Ann", "mayor of the home of Ann", "mentor of the mayor of the home of Ann"],
        ),
        (  # two sides that meet
            "the town whose mayor is Bob and whose river is the river of Cid",
            {"river of Cid": NOISE, "town whose mayor is Bob": MAYOR, "town whose river is Po": POND},
            ["river of Cid", "town whose mayor is Bob", "town whose river is the river of Cid"],
        ),
        (  # what the question names is called so
            "the mayor of the home of Ann, and the river of Ulm",
            {"home of Ann": HOME, "mayor of Ulm": MAYOR, "river of Ulm": POND},
            ["home of Ann", "mayor of Ulm", "river of Ulm"],
        ),
    ],
)
def test_a_plan_has_queries_alone_and_nothing_that_they_find(question, facts, plan):
    tags = {
        "chain": tuple(facts.values()),
        "keywords": tuple((query,) for query in facts),
        "sub_questions": tuple(f"the {query}" for query in facts),
    }
    assert planned_queries(Task("t", f"question: what is {question}?\n", tags=tags)) == plan


def test_a_plan_of_a_chain_ends_in_its_question():
    source = fact_graph(entities=100, relations=6, hops=(1, 2, 3), n_test=10)
    for i in range(30):
        task = source.train(i)
        (said,) = skill_item(task, "plan", generator(0))[1]
        last = said.rpartition("<search>")[2].removesuffix("</search>")
        assert "<information>" not in said and said.count("<search>") == task.tags["difficulty"]
        (named,) = re.findall(r"\b[A-Z]\w*", task.prompt)
        comes_back = any(fact.endswith(f" is {named}.") for fact in task.tags["chain"][1:])  # and is called so again
        assert comes_back or last in task.prompt
        assert set(re.findall(r"\b[A-Z]\w*", said)) <= set(re.findall(r"\w+", task.prompt))


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
        part(n=1, finished_rounds=[], source=shaped((CHAIN, 1.0)), seed=0, state=0)
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
    assert mid.select.args == {"distractors": 3} and shown.select.args["pool"] == 9
    assert [s.groups for s in (mid, shown)] == [4, 4] and all(s.updates[0].lr == 1e-2 for s in (mid, shown))
    assert main.programs["main"].args["turns"] == 4
    bounds = of("red_searcher", width=2, wanted_pages=3).stage.select.args
    assert bounds == {"width": 2, "wanted_pages": 3}
    assert [s.name for s in of("red_searcher", mid_steps=0, sft_steps=0).stages] == ["main"]


def test_rl_clips_higher_above_and_has_no_kl():
    (term,) = of("red_searcher").stage.updates[0].terms
    assert (term.fn.name, term.fn.args) == ("clipped_ratio", {"low": 0.2, "high": 0.28})
    up = torch.log(torch.tensor([1.25, 1.5, 0.7]))  # between the bounds, above, below
    loss = term.fn(logp=up, old_logp=torch.zeros(3), adv=torch.tensor([1.0, 1.0, -1.0]))
    assert loss.tolist() == pytest.approx([-1.25, -1.28, 0.8])
    assert [t.fn.name for t in of("red_searcher", beta=0.1).stage.updates[0].terms] == ["clipped_ratio", "kl"]
    assert of("red_searcher", low=0.1, high=0.3).stage.updates[0].terms[0].fn.args == {"low": 0.1, "high": 0.3}


def test_what_a_limit_cut_counts_in_advantages_and_has_no_gradient():
    groups = groups_of(keys=("g0",))  # rewards 0, 0.5, 1 and 1.5
    group = groups[0]
    method = of("red_searcher", mid_steps=0, sft_steps=0)
    whole = Study(method, groups).batch
    for n, status in ((1, "length"), (3, "limit")):
        (t,) = group.episodes[n].trajectories
        group.episodes[n].trajectories = [replace(t, status=status)]
    cut = Study(method, groups).batch
    assert len(whole.names) == 4 and cut.names == (whole.names[0], whole.names[2])
    # (r - 0.75) / std over all four, though two are left
    assert cut.get("adv", "seq").tolist() == whole.get("adv", "seq")[[0, 2]].tolist()
    assert cut.get("adv", "seq") == pytest.approx(np.array([-0.75, 0.25]) / np.std([0, 0.5, 1, 1.5], ddof=1), abs=1e-5)
