"""SSP: the rules and rewards by hand, the three rounds of a step, the loss streams."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.episodes import full_text, scripted_context

from selfteach import api
from selfteach.configuration import plan, task_source
from selfteach.core import BadValue, Score, Task, collate, registry
from selfteach.core.scoring import score
from selfteach.core.task import RolloutRequest
from selfteach.credit.advantages import norm
from selfteach.credit.composers import per_trajectory
from selfteach.curriculum.select import first_task_index
from selfteach.loop.episode import play
from selfteach.methods.ssp import (
    from_evidence,
    passes,
    propose,
    propose_check_solve,
    proposer_and_solver,
    proposing,
    shown,
)
from selfteach.rollout.search import search_agent
from selfteach.tasks.questions import FactQuestions

GOOD = {"question": "what is the home of Ann?", "queries": ["home is Ulm"], "evidence": ["the home of Ann is Ulm."]}


@pytest.mark.parametrize(
    ("change", "stays"),
    [
        ({}, True),
        ({"question": None}, False),
        ({"question": "what is Ulm to the home of Ann?"}, False),  # contains its answer
        ({"question": "what is it?"}, False),  # three words
        ({"evidence": []}, False),
        ({"queries": []}, False),
        ({"queries": ["a", "a"]}, False),  # the same search twice
    ],
)
def test_the_rules_of_proposals(change, stays):
    assert passes({**GOOD, **change}, ("Ulm",)) is stays
    assert not passes(GOOD, ("Ulm",), min_searches=2) and not passes(GOOD, ("Ulm",), min_words=10)


@pytest.fixture(scope="module")
def source():
    return task_source("factworld", {"entities": 60, "n_test": 8})


def test_demonstrations_hold_what_the_engine_retrieves_and_no_test_question(source):
    requests, state = proposing(n=60, finished_rounds=[], source=source, seed=0, state=0)
    ask, questions = source.tools["search"](source=source), source.questions
    tested = {t.prompt.strip().removeprefix("question: ") for t in source.test}
    assert questions.tested == tested
    assert state == 60 and len({r.task.id for r in requests}) == 60
    for r in requests[::6]:
        text = r.task.data[0]
        question = re.findall("<question> (.*?)</question>", text)[0]
        assert all(
            ask(q) == found for q, found in re.findall("<search>(.*?)</search><information>(.*?)</information>", text)
        )
        assert questions.supported(question, r.task.answer) and question not in tested
    for r in [*requests[1::6], *requests[2::6], *requests[4::6]]:
        quoted = re.findall("the \\w+ of \\w+ is \\w+\\.", r.task.data[0])
        assert r.task.data[0].endswith(f"so it is {r.task.answer[0]}.</think><answer> {r.task.answer[0]}</answer>")
        assert all(q in r.task.prompt for q in quoted) and quoted[-1].endswith(f"is {r.task.answer[0]}.")
        assert quoted[0].split(" is ")[0].split()[-1] in r.task.prompt.split("?")[0], (
            "the evidence begins with the question's subject"
        )
    kept = [r.task.data for i, r in enumerate(requests) if i % 6 in (3, 5)]
    assert kept == [source.demos(i).data for i in range(20)], "the warm start's demonstrations are among them"


def test_retrieved_text_of_a_demonstration_is_masked(tags):
    data = "<search>home is Ulm</search><information>the home of Ann is Ulm.</information><question> q?</question>"
    context = scripted_context(shown(), [], tags)
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "propose\n", data=(data,)))]))
    tree = group.episodes[0].tree
    assert data in full_text(group.episodes[0], tags)
    assert tags.decode(tree.id[tree.action_mask]).startswith("<search>home is Ulm</search><question> q?</question>")


def answers(text: str, rng_key: int) -> str:
    """A policy that proposes of Ann rightly, of Cid a question whose evidence does not answer it, and of Eve without
    searching.
    """
    if text.startswith("propose"):
        who = re.search("to (\\w+)", text)[1]
        if "<information>" in text:
            return {
                "Ulm": "<question> what is the home of Ann?</question>",
                "Bo": "<question> what is the guild of Cid?</question>",
            }[who]
        return "<question> what is the home of Eve?</question>" if who == "Rhon" else f"<search>home is {who}</search>"
    if text.endswith("<think>the"):
        return (
            " Ulm.</think><answer> Ulm</answer>" if "home of Ann?" in text else " no.</think><answer> nothing</answer>"
        )
    return "<answer> Ulm</answer>" if rng_key % 2 else "<answer> Bonn</answer>"


def rounds(tags, check=True, pool=(), tests=()):
    """All rounds of one step over three answers, with scores."""
    made = [Task(f"train/{i}", "question: ?\n", (a,), tags={"hops": 1}) for i, a in enumerate(("Ulm", "Bo", "Rhon"))]
    documents = lambda: [SimpleNamespace(text=t) for t in ("the home of Ann is Ulm.", "the guild of Cid is Dom.")]  # noqa: E731
    source = SimpleNamespace(
        train=lambda i: made[(i - first_task_index(0)) % 3],
        test=(Task("test/0", "question: what is the sea of X?\n"),),
        questions=FactQuestions("made", documents, tests),
    )
    programs = {"main": search_agent(), "propose": propose(), "check": from_evidence()}
    found = {"home is Ulm": "the home of Ann is Ulm.", "home is Bo": "the guild of Cid is Dom."}
    context = scripted_context(programs["main"], answers, tags, tools={"search": found.__getitem__})
    context.programs = programs
    back, state = [], {"asked": 0, "pool": list(pool)}
    while True:
        requests, state = propose_check_solve(
            n=3,
            rollouts=4,
            finished_rounds=back,
            source=source,
            seed=0,
            step=1,
            state=state,
            check=check,
            noise=4,
            min_searches=1,
            min_words=4,
            pool_steps=10,
        )
        if not requests:
            break
        back.append(asyncio.run(play(context, requests, len(back))))
    groups = [g for r in back for g in r]
    assert {e.status for g in groups for e in g.episodes} == {"done"}, [e.why for g in groups for e in g.episodes]
    scores = asyncio.run(score(proposer_and_solver(), groups, context))["reward"]
    for g in groups:
        g.scores["reward"] = {at: s for at, s in scores.items() if at.episode in {e.id for e in g.episodes}}
    return back, state, scores, context


def test_a_step_proposes_checks_and_solves(tags):
    back, state, _, _ = rounds(tags, pool=[["what is the old one?", ["Ulm"]]])
    assert [g.request.program for r in back for g in r] == ["propose"] * 3 + ["check"] * 2 + ["main"] * 2
    evidence = [full_text(g.episodes[0], tags) for g in back[1]]
    assert all("home of Ann is Ulm." in t and "guild of Cid is Dom." in t for t in evidence), (
        "the other proposal's evidence is the noise"
    )
    solved = {g.request.task.prompt: g for g in back[2]}
    assert set(solved) == {"question: what is the home of Ann?\n", "question: what is the old one?\n"}
    valid = solved["question: what is the home of Ann?\n"].request
    assert (valid.cause, valid.n, valid.task.tags["true"]) == (back[0][0].key, 4, True)
    assert solved["question: what is the old one?\n"].request.cause is None
    assert (
        state["pool"] == [["what is the old one?", ["Ulm"]], ["what is the home of Ann?", ["Ulm"]]]
        and state["asked"] == 3
    )


def test_without_the_check_a_false_question_is_given_to_the_solver(tags):
    back, _, _, _ = rounds(tags, check=False)
    assert [g.request.task.tags["true"] for g in back[1]] == [True, False]
    parts = [next(iter(g.scores["reward"].values())).parts for g in back[0]]
    assert [p.get("true") for p in parts] == [1.0, 0.0, None] and [p["valid"] for p in parts] == [1.0, 1.0, 0.0]


def test_a_test_question_is_not_given_to_the_solver(tags):
    back, state, _, _ = rounds(tags, tests=["question: what is the home of Ann?\n"])
    assert [g.request.program for r in back for g in r] == ["propose"] * 3 + ["check"] and state["pool"] == []


def test_a_task_that_cannot_make_questions_is_refused():
    with pytest.raises(BadValue, match="chain_sum: cannot make new questions"):
        proposing(n=1, finished_rounds=[], source=task_source("chain_sum", {}), seed=0, state=0)


def test_the_proposers_reward_is_the_solvers_failure_rate(tags):
    back, _, _, _ = rounds(tags)
    solver = back[2][0]
    success = [s.value for s in solver.scores["reward"].values()]
    rewards = [next(iter(g.scores["reward"].values())) for g in back[0]]
    assert rewards[0].value == pytest.approx(1 - np.mean(success)) and rewards[0].parts["hard"] == rewards[0].value
    assert rewards[1].value == rewards[2].value == 0.0 and all(isinstance(p, Score) for p in rewards)
    assert not any(g.scores["reward"] for g in back[1]), "the check has no reward"


def test_each_role_has_its_own_normalisation_and_stream(tags):
    """The proposer's advantage is its reward; the solver's is over its group: with k right of 4, (1 - k/4) / std."""
    back, _, _, context = rounds(tags)
    groups = [g for r in back for g in r]
    solver = back[2][0]
    # rewards that differ, whatever was sampled: 1, 0, 0, 0 -> mean 1/4, std 1/2: 1.5, -0.5, ...; the proposer has
    # 3/4
    for n, at in enumerate(solver.scores["reward"]):
        solver.scores["reward"][at] = Score(float(n == 0))
    at = next(iter(back[0][0].scores["reward"]))
    back[0][0].scores["reward"][at] = Score(0.75)
    batch = collate(per_trajectory()(groups=groups), context.tree)
    adv = norm(reward=batch.get("reward", "seq"), group=batch.get("group", "seq"), singleton="raw")["adv"].values
    role = batch.get("role", "seq")
    assert sorted(adv[role == "proposer"]) == pytest.approx([0, 0, 0.75])
    assert adv[role == "policy"] == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert set(batch.loss_streams) == {"propose", "main"} and not (batch.get("span") == 1).any()
    first, second = registry.methods.get("ssp")().stage.updates
    assert first.params == second.params == ("policy",)
    for update, stream in ((first, "propose"), (second, "main")):  # each has the KL to the reference on its own tokens
        assert [(t.fn.name, t.on, t.coef) for t in update.terms] == [
            ("clipped_ratio", (stream,), 1.0),
            ("kl", (stream,), 0.01),
        ]


def test_a_run_goes_through_both_stages(tmp_path):
    world = {"entities": 60, "relations": 4, "hops": (1, 2), "n_test": 4}
    short = {"model": "tiny-s", "steps": 2, "max_tokens": 20, "warm_steps": 4, "warm_batch": 8, "eval_every": 0}
    run_config = plan("ssp", "factworld", world, args={"groups": 3, "rollouts": 2, "sft_steps": 1}, **short)
    seen: list[dict] = []
    run = api.train(
        replace(run_config, final_eval=api.EvalConfig(tasks=1, pass_at_k_tasks=0, k=0, decoder_samples=0)),
        tmp_path / "run",
        lambda e: seen.append(dict(e)),
    )
    steps = [e for e in seen if e["event"] == "step"]
    assert run.done and [e["stage"] for e in steps] == ["teach", "play"]
    assert steps[1]["tokens/sampled"] == steps[1]["tokens/learned"] + sum(
        v for k, v in steps[1].items() if k.startswith("dropped/")
    )


def proposed(tags, replies, **hyper_parameters):
    """What a proposer returns, its episode, and the calls of the engine."""
    table = scripted_context(propose(**hyper_parameters), replies, tags, tools={"search": lambda q: f"found {q}."})
    (episode,) = asyncio.run(play(table, [RolloutRequest(Task("t", "propose: 1 hops to Ulm.\n"), 1)]))[0].episodes
    assert episode.why == ""
    return episode.answer, episode, table.engine.calls


def test_a_proposer_searches_three_times_and_then_only_asks(tags):
    searches = [f"<search>q{n}</search>" for n in range(4)]
    asks = "<question> who?</question>"
    answer, episode, calls = proposed(tags, [*searches[:3], asks])
    assert answer == {
        "question": "who?",
        "queries": ["q0", "q1", "q2"],
        "evidence": ["found q0.", "found q1.", "found q2."],
    }
    both, last = ("</search>", "</question>"), ("</question>",)
    assert [sampling.stop for _, _, sampling, _ in calls] == [both, both, both, last]
    assert {sampling.temperature for _, _, sampling, _ in calls} == {0.8}
    (t,) = episode.trajectories
    assert (t.learn, t.role) == ("propose", "proposer")
    # a fourth search is neither stopped at nor answered
    answer, _, calls = proposed(tags, searches)
    assert answer["question"] is None and answer["queries"] == ["q0", "q1", "q2"] and len(calls) == 4
    # it ends with its question, and at a turn that has neither a question nor a query
    assert len(proposed(tags, [searches[0], asks, searches[1]])[2]) == 2
    answer, _, calls = proposed(tags, ["no tags", asks])
    assert answer == {"question": None, "queries": [], "evidence": []} and len(calls) == 1
    answer, _, calls = proposed(tags, [searches[0], asks], turns=0)
    assert answer["queries"] == [] and [sampling.stop for _, _, sampling, _ in calls] == [last]


def test_the_check_answers_in_one_turn_of_48_tokens(tags):
    table = scripted_context(from_evidence(), [" Ulm.</think><answer> Ulm</answer>"], tags)
    (episode,) = asyncio.run(play(table, [RolloutRequest(Task("t", "q?\n"), 1)]))[0].episodes
    ((_, text, sampling, _),) = table.engine.calls
    assert (text, sampling.max_tokens, sampling.stop) == ("q?\n<think>the", 48, ("</answer>",))
    assert episode.answer == "Ulm" and [(t.learn, t.role) for t in episode.trajectories] == [(None, "checker")]


def test_the_pool_of_questions_is_emptied_every_ten_steps():
    train = lambda i: Task(f"train/{i}", "question: ?\n", ("Ulm", "Ulm an der Donau"), tags={"hops": 2})  # noqa: E731
    source = SimpleNamespace(train=train, test=(Task("test/0", "q"),), questions=None)
    state = {"asked": 5, "pool": [["what is the old one?", ["Ulm"]]]}
    for step, kept in ((0, 0), (1, 1), (9, 1), (10, 0), (11, 1), (20, 0)):
        found, after = propose_check_solve(
            n=2, rollouts=4, finished_rounds=[], source=source, seed=0, step=step, state=state
        )
        assert len(after["pool"]) == kept and after["asked"] == 7
        assert [(r.task.id, r.n, r.program) for r in found] == [(f"propose/{step}/{i}", 1, "propose") for i in (0, 1)]
        assert found[0].task.prompt == "propose: 2 hops to Ulm.\n" and found[0].task.answer == ("Ulm",)
    _, after = propose_check_solve(
        n=2, rollouts=4, finished_rounds=[], source=source, seed=0, step=4, state=state, pool_steps=2
    )
    assert after["pool"] == []


def test_the_check_is_shown_with_the_evidence_of_two_other_questions():
    made = iter(range(100))

    def compose(draw: np.random.Generator) -> SimpleNamespace:
        n = next(made)
        return SimpleNamespace(question=f"q{n}?", answer=f"a{n}", searches=((f"s{n}", f"line {n}."),))

    questions = SimpleNamespace(compose=compose, tested=set(), prompt=lambda question: f"question: {question}\n")
    source = SimpleNamespace(questions=questions, demos=None, test=(Task("test/0", "q"),), name="made")
    found, state = proposing(n=2, finished_rounds=[], source=source, seed=0, state=0)
    assert state == 2 and found[0].task.prompt == "propose: 1 hops to a0.\n"
    prompt = found[1].task.prompt
    assert prompt.startswith("question: q1?\n<information>")
    assert sorted(re.findall(r"line \d", prompt)) == [f"line {n}" for n in (1, 2, 3)]  # its own and two more
