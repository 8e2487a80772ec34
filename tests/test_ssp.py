"""Search self-play: rules, facts and pay by hand; the three rounds of a step; what is learned by whom."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import table_of, told

from selfteach import api
from selfteach.core import Score, Task, gather, registry
from selfteach.core.scoring import score
from selfteach.core.task import Request
from selfteach.credit.baseline import norm
from selfteach.credit.compose import each
from selfteach.curriculum.proposals import bears_out, facts_of, passes, propose_check_solve, proposing
from selfteach.curriculum.select import start
from selfteach.loop.episode import play
from selfteach.reward.proposals import proposer_and_solver
from selfteach.rollout.propose import from_evidence, propose, shown
from selfteach.rollout.search import search_agent

GOOD = {"question": "what is the home of Ann?", "queries": ["home is Ulm"], "evidence": ["the home of Ann is Ulm."]}


@pytest.mark.parametrize(
    ("change", "stays"),
    [
        ({}, True),
        ({"question": None}, False),
        ({"question": "what is Ulm to the home of Ann?"}, False),  # tells its answer
        ({"question": "what is it?"}, False),  # three words
        ({"evidence": []}, False),
        ({"queries": []}, False),
        ({"queries": ["a", "a"]}, False),  # the same search twice
    ],
)
def test_the_rules(change, stays):
    assert passes({**GOOD, **change}, ("Ulm",)) is stays
    assert not passes(GOOD, ("Ulm",), searches=2) and not passes(GOOD, ("Ulm",), words=10)


def test_the_corpus_bears_a_question_out():
    facts = {("home", "Ann"): "Ulm", ("mayor", "Ulm"): "Bo"}
    assert bears_out(facts, "what is the mayor of the home of Ann?", ["Bo"]) is True
    assert bears_out(facts, "what is the home of Ann?", ["Bo"]) is False
    assert bears_out(facts, "what is the home of the mayor of Ann?", ["Ulm"]) is False  # Ann is no town
    assert bears_out(facts, "who is Ann?", ["Ulm"]) is None


@pytest.fixture(scope="module")
def source():
    return api.source_of("factworld", {"entities": 60, "n_test": 8})


def test_demonstrations_show_what_the_engine_finds_and_no_test_question(source):
    requests, state = proposing(n=60, back=[], source=source, seed=0, state=0)
    ask, facts = source.tools["search"](source=source), facts_of(source)
    tested = {t.prompt.strip().removeprefix("question: ") for t in source.test}
    assert state == 60 and len({r.task.id for r in requests}) == 60
    for r in requests[::6]:
        said = r.task.data[0]
        question = re.findall("<question> (.*?)</question>", said)[0]
        assert all(ask(q) == found for q, found in re.findall("<search>(.*?)</search><information>(.*?)</information>", said))
        assert bears_out(facts, question, r.task.answer) and question not in tested
    for r in [*requests[1::6], *requests[2::6], *requests[4::6]]:
        quoted = re.findall("the \\w+ of \\w+ is \\w+\\.", r.task.data[0])
        assert r.task.data[0].endswith(f"so it is {r.task.answer[0]}.</think><answer> {r.task.answer[0]}</answer>")
        assert all(q in r.task.prompt for q in quoted) and quoted[-1].endswith(f"is {r.task.answer[0]}.")
        assert quoted[0].split(" is ")[0].split()[-1] in r.task.prompt.split("?")[0], "what is quoted begins with whom the question is about"
    kept = [r.task.data for i, r in enumerate(requests) if i % 6 in (3, 5)]
    assert kept == [source.demos(i).data for i in range(20)], "what the warm start showed is kept alive"


def test_what_a_demonstration_found_is_not_taught(tags):
    data = "<search>home is Ulm</search><information>the home of Ann is Ulm.</information><question> q?</question>"
    table = table_of(shown(), [], tags)
    (group,) = asyncio.run(play(table, [Request(Task("t", "propose\n", data=(data,)))]))
    tree = group.episodes[0].tree
    assert data in told(group.episodes[0], tags)
    assert tags.decode(tree.id[tree.chosen]).startswith("<search>home is Ulm</search><question> q?</question>")


def answers(text: str, address: int) -> str:
    """A policy that proposes of Ann rightly, of Cid a question whose evidence does not answer it, and of Eve without searching."""
    if text.startswith("propose"):
        who = re.search("to (\\w+)", text)[1]
        if "<information>" in text:
            return {"Ulm": "<question> what is the home of Ann?</question>", "Bo": "<question> what is the guild of Cid?</question>"}[who]
        return "<question> what is the home of Eve?</question>" if who == "Rhon" else f"<search>home is {who}</search>"
    if text.endswith("<think>the"):
        return " Ulm.</think><answer> Ulm</answer>" if "home of Ann?" in text else " no.</think><answer> nothing</answer>"
    return "<answer> Ulm</answer>" if address % 2 else "<answer> Bonn</answer>"


def rounds(tags, check=True, pool=()):
    """All rounds of one step over three answers, with scores."""
    made = [Task(f"train/{i}", "question: ?\n", (a,), tags={"hops": 1}) for i, a in enumerate(("Ulm", "Bo", "Rhon"))]
    documents = lambda: [SimpleNamespace(text=t) for t in ("the home of Ann is Ulm.", "the guild of Cid is Dom.")]  # noqa: E731
    source = SimpleNamespace(train=lambda i: made[(i - start(0)) % 3], test=(Task("test/0", "question: what is the sea of X?\n"),), corpus=documents)
    programs = {"main": search_agent(), "propose": propose(), "check": from_evidence()}
    found = {"home is Ulm": "the home of Ann is Ulm.", "home is Bo": "the guild of Cid is Dom."}
    table = table_of(programs["main"], answers, tags, tools={"search": found.__getitem__})
    table.programs = programs
    back, state = [], {"asked": 0, "pool": list(pool)}
    while True:
        requests, state = propose_check_solve(
            n=3, rollouts=4, back=back, source=source, seed=0, step=1, state=state, check=check, noise=4, searches=1, words=4, fresh=10
        )
        if not requests:
            break
        back.append(asyncio.run(play(table, requests, len(back))))
    groups = [g for r in back for g in r]
    assert {e.status for g in groups for e in g.episodes} == {"done"}, [e.why for g in groups for e in g.episodes]
    scores = asyncio.run(score(proposer_and_solver(), groups, table))["reward"]
    for g in groups:
        g.scores["reward"] = {at: s for at, s in scores.items() if at.episode in {e.id for e in g.episodes}}
    return back, state, scores, table


def test_a_step_proposes_checks_and_solves(tags):
    back, state, _, _ = rounds(tags, pool=[["what is the old one?", ["Ulm"]]])
    assert [g.request.program for r in back for g in r] == ["propose"] * 3 + ["check"] * 2 + ["main"] * 2
    evidence = [told(g.episodes[0], tags) for g in back[1]]
    assert all("home of Ann is Ulm." in t and "guild of Cid is Dom." in t for t in evidence), "the other's evidence is the noise"
    solved = {g.request.task.prompt: g for g in back[2]}
    assert set(solved) == {"question: what is the home of Ann?\n", "question: what is the old one?\n"}
    valid = solved["question: what is the home of Ann?\n"].request
    assert (valid.cause, valid.n, valid.task.tags["true"]) == (back[0][0].key, 4, True)
    assert solved["question: what is the old one?\n"].request.cause is None
    assert state["pool"] == [["what is the old one?", ["Ulm"]], ["what is the home of Ann?", ["Ulm"]]] and state["asked"] == 3


def test_without_the_check_a_question_that_is_not_true_is_asked(tags):
    back, _, _, _ = rounds(tags, check=False)
    assert [g.request.task.tags["true"] for g in back[1]] == [True, False]
    parts = [next(iter(g.scores["reward"].values())).parts for g in back[0]]
    assert [p.get("true") for p in parts] == [1.0, 0.0, None] and [p["valid"] for p in parts] == [1.0, 1.0, 0.0]


def test_the_proposer_is_paid_what_the_solver_fails(tags):
    back, _, _, _ = rounds(tags)
    solver = back[2][0]
    won = [s.value for s in solver.scores["reward"].values()]
    pay = [next(iter(g.scores["reward"].values())) for g in back[0]]
    assert pay[0].value == pytest.approx(1 - np.mean(won)) and pay[0].parts["hard"] == pay[0].value
    assert pay[1].value == pay[2].value == 0.0 and all(isinstance(p, Score) for p in pay)
    assert not any(g.scores["reward"] for g in back[1]), "nobody pays the checker"


def test_each_role_has_its_own_normalisation_and_stream(tags):
    """The proposer's advantage is its pay as it is; the solver's is over its group: with k right of 4, (1 - k/4) / std."""
    back, _, _, table = rounds(tags)
    groups = [g for r in back for g in r]
    solver = back[2][0]
    # rewards that differ, whatever the lots gave: 1, 0, 0, 0 -> mean 1/4, std 1/2: 1.5, -0.5, ...; the proposer is paid 3/4
    for n, at in enumerate(solver.scores["reward"]):
        solver.scores["reward"][at] = Score(float(n == 0))
    at = next(iter(back[0][0].scores["reward"]))
    back[0][0].scores["reward"][at] = Score(0.75)
    batch = gather(each()(groups=groups), table.tree)
    adv = norm(reward=batch.get("reward", "seq"), group=batch.get("group", "seq"), singleton="raw")["adv"].values
    role = batch.get("role", "seq")
    assert sorted(adv[role == "proposer"]) == pytest.approx([0, 0, 0.75])
    assert adv[role == "policy"] == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert set(batch.streams) == {"propose", "main"} and not (batch.get("span") == 1).any()
    first, second = registry.methods.get("ssp")().stage.updates
    assert first.terms[0].on == ("propose",) and second.terms[0].on == ("main",) and first.params == second.params == ("policy",)


def test_a_run_goes_through_both_stages(tmp_path):
    job = api.plan("ssp", "factworld", {"entities": 60, "relations": 4, "hops": (1, 2), "n_test": 4}, {"groups": 3, "rollouts": 2, "teach": 1},
                   model="tiny-s", steps=2, max_tokens=20, warm_steps=4, warm_batch=8, eval_every=0)  # fmt: skip
    seen: list[dict] = []
    run = api.train(replace(job, survey=api.Survey(tasks=1, deep=0, k=0, ways=0)), tmp_path / "run", lambda e: seen.append(dict(e)))
    steps = [e for e in seen if e["event"] == "step"]
    assert run.done and [e["stage"] for e in steps] == ["teach", "play"]
    assert steps[1]["tokens/sampled"] == steps[1]["tokens/learned"] + sum(v for k, v in steps[1].items() if k.startswith("dropped/"))
