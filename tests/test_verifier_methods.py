"""Verifiers trained beside the policy: a reward model taught by certified answers and their corruptions, and a verifier that writes."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import said_group, table_of
from test_battery import Study, groups_of, same

from selfteach import api
from selfteach.core import Episode, Group, Ref, Request, Sampling, Score, Source, Task, Trajectory, Tree, gather, registry
from selfteach.core.protocols import History
from selfteach.core.scoring import score
from selfteach.credit.baseline import norm
from selfteach.credit.graded import certified_pairs, corrupted
from selfteach.credit.verdicts import balance_classes, fuse_steps, with_verdicts
from selfteach.curriculum.select import reviewed
from selfteach.loop.episode import play
from selfteach.objective.grading import bradley_terry, right_or_wrong
from selfteach.reward.answer import exact_match, terse_match
from selfteach.reward.appraised import appraised
from selfteach.reward.combine import by_program
from selfteach.reward.noted import noted
from selfteach.rollout.single import single
from selfteach.rollout.verification import sums_up, verdict_of, verify

SUM = Task("t", "2 + 3 + 4 =\n", ("9",))
TERSE = "<think> 2 + 3 = 5. 5 + 4 = 9.</think><answer> 9</answer>"
WORDED = "<think> we start with 2. first we add 3: 2 + 3 = 5. then we add 4: 5 + 4 = 9. so the answer is 9.</think><answer> 9</answer>"


# ---- a second round about each answer


def test_each_answer_is_asked_about_in_a_second_round():
    source = Source("s", train=lambda i: Task(f"t{i}", "p"), test=[])
    give: dict[str, Any] = {"n": 2, "rollouts": 2, "source": source, "seed": 0, "state": 0}
    select = reviewed(program="verify", times=4, every=3)
    first, state = select(**give, back=[], step=0)
    assert [r.n for r in first] == [2, 2] and state == 2
    back = [[said_group(((1,), (2,)), [1.0, 0.0], key=r.task.id) for r in first]]
    again, state = select(**{**give, "state": state}, back=back, step=3)
    assert len(again) == 4 and {r.n for r in again} == {4} and {r.program for r in again} == {"verify"} and state == 2
    assert [r.help["reward"] for r in again[:2]] == [1.0, 0.0]
    assert [r.help["output"] for r in again[:2]] == [e.trajectories[0].leaf for e in back[0][0].episodes]
    assert {r.cause for r in again} == {g.key for g in back[0]}
    assert {r.n for r in select(**give, back=back, step=4)[0]} == {1}  # between each `every`
    assert select(**give, back=[*back, []], step=3) == ([], 0)


# ---- Cooper


def test_a_rule_of_low_recall_reads_sums_only():
    for text, answer, value in ((TERSE, "9", 1.0), (WORDED, "9", 0.0), (TERSE, "8", 0.0)):
        assert terse_match(answer=answer, task=SUM, text=text).value == value
    assert exact_match(answer="9", task=SUM).value == 1.0


@pytest.mark.parametrize("n", range(20))
def test_a_corruption_changes_the_result_and_nothing_before_it(n):
    for text in (TERSE, WORDED):
        bad = corrupted(text, SUM, exact_match(), ("c", n))
        assert bad is not None
        other = bad.split("<answer> ")[1].split("<")[0]
        assert other in {"8", "10", "7", "11", "1", "19"}  # 9 off by 1, 2 or 10; 9 - 10 is told as 1
        assert bad == text.replace("= 9", f"= {other}").replace("is 9", f"is {other}").replace("> 9<", f"> {other}<")
    assert corrupted("<answer> nine</answer>", SUM, exact_match(), ("c",)) is None


def test_a_result_that_a_rule_still_calls_right_is_no_negative():
    anything = Task("t", "p", tuple(str(i) for i in range(100)))
    assert corrupted(TERSE, anything, exact_match(), ("c",)) is None


def test_a_pair_is_preferred_by_the_difference_at_the_last_tokens():
    # texts of 2 and 3 tokens; the scalar after their last ones: 1 and -0.5. -log sigmoid(1.5) = log(1 + e^-1.5) = 0.2014
    scalar, seq = torch.tensor([9.0, 1.0, 7.0, 8.0, -0.5]), torch.tensor([0, 0, 1, 1, 1])
    got = bradley_terry(scalar_after=scalar, seq=seq, win=torch.tensor([0]), lose=torch.tensor([1]))
    assert got.item() == pytest.approx(math.log1p(math.exp(-1.5)))
    # labels 1 and 0: log(1 + e^-1) and log(1 + e^-0.5)
    got = right_or_wrong(scalar_after=scalar, seq=seq, label=torch.tensor([1.0, 0.0]))
    assert got.tolist() == pytest.approx([math.log1p(math.exp(-1)), math.log1p(math.exp(-0.5))])


def answered(tokenizer: Any, texts: list[str], rule: list[float]) -> tuple[list[Group], Any]:
    """A group of answers, and the appraisals of each as `appraise` leaves them."""
    table = table_of(single(), lambda *_: "", tokenizer)
    episodes, scores, reviews = [], {}, []
    for n, text in enumerate(texts):
        tree = Tree()
        at = Ref(f"a/{n}", tree.add(tree.add(-1, tokenizer.encode(SUM.prompt)), tokenizer.encode(text), chosen=True, sampling=Sampling()))
        episodes.append(Episode(at.episode, tree, [Trajectory(at, "policy", "k")]))
        scores[at] = Score(0.5, {"rule": rule[n]})
        other = Tree()
        node = other.add(other.add(-1, tokenizer.encode(SUM.prompt)), tokenizer.encode(text))
        end = Ref(f"r/{n}", other.add(node, tokenizer.encode("\n 9"), span="reference"))
        other.notes[end.node] = {"worth": 0.25 * (n + 1)}
        request = Request(SUM, 1, "appraise", help={"output": at})
        reviews.append(Group(request, [Episode(end.episode, other, [Trajectory(end, "rm", f"r{n}", None)])], {"reward": {end: Score(0.5)}}, f"r{n}"))
        table.trees.update({at.episode: tree, end.episode: other})
    return [Group(Request(SUM, len(texts), key="k"), episodes, {"reward": scores}, "k"), *reviews], table


def test_a_certified_answer_and_its_corruption_are_a_pair_that_weighs_nothing_in_the_policy(tags):
    groups, table = answered(tags, [WORDED, TERSE], [0.0, 1.0])
    win, lose = certified_pairs(wrong=exact_match())(groups=groups, cast=table)
    assert win.beats == (1,) and lose.beats == () and win.member == lose.member == "rm"
    batch = gather([win, lose], table.tree)
    text = [tags.decode(batch.ids[a:z]) for a, z in zip(batch.start, batch.start[1:], strict=False)]
    assert text[0] == f"{SUM.prompt}{TERSE}\n 9" and text[1] != text[0] and text[1].endswith("\n 9")  # the reference stays
    assert batch.place.tolist() == [batch.start[1] - 1, batch.start[2] - 1]  # their last tokens alone
    assert norm()(reward=batch.get("reward", "seq"), group=batch.get("group", "seq"))["adv"].values.tolist() == [0.0, 0.0]
    assert certified_pairs(wrong=exact_match())(groups=answered(tags, [WORDED], [0.0])[0], cast=table) == []


def test_the_reward_of_an_answer_is_what_its_appraisal_noted(tags):
    groups, table = answered(tags, [WORDED, TERSE], [0.0, 1.0])
    for e in groups[0].episodes:
        e.answer = "9"
    part = appraised(beside=(("rule", terse_match()), ("right", exact_match())))
    found = asyncio.run(score(part, groups, table))["reward"]
    worded, terse = (found[e.trajectories[0].leaf] for e in groups[0].episodes)
    assert (worded.value, terse.value) == (0.25, 0.5)
    assert worded.parts == {"rule": 0.0, "right": 1.0, "agreed": 0.0} and terse.parts["rule"] == 1.0
    assert found[groups[1].episodes[0].trajectories[0].leaf].value == 0.25
    lost = asyncio.run(score(part, groups[:1], table))["reward"]
    assert all(s.value is None and "noted its worth" in (s.error or "") for s in lost.values())


def test_cooper_without_its_reward_model_is_grpo():
    method = registry.methods.get("cooper")
    assert [u.params for u in method().stage.updates] == [("policy",), ("rm",)]
    same(replace(method(update=False), stages=method(update=False).stages[1:]), registry.methods.get("grpo")())


# ---- RL Tango


def test_verdicts_are_read_by_form():
    assert verdict_of("<think> + - +</think><answer> 1</answer>", 3) == ([1, -1, 1], True)
    assert verdict_of("<think> + -</think><answer> 1</answer>", 3) == (None, True)  # a mark is missing
    assert verdict_of("<think> + ?</think><answer> 2</answer>", 2) == (None, None)
    assert [sums_up(s) for s in (" 2 + 3 = 5.", " 5 - 4 = 9.", " we start with 5.")] == [True, False, None]


def judged(tokenizer: Any, replies: list[str], reward: float = 1.0, text: str = TERSE) -> tuple[list[Group], Any]:
    """An answer's group with `replies` as the verdicts on it."""
    said = iter([text, *replies])
    table = table_of(single(), lambda *_: next(said), tokenizer, members=("policy", "verifier"))
    table = replace(table, programs={"main": single(), "verify": verify()})
    answer = asyncio.run(play(table, [Request(SUM, 1)]))[0]
    leaf = answer.episodes[0].trajectories[0].leaf
    answer.scores["reward"] = {leaf: Score(reward)}
    help_ = {"output": leaf, "reward": reward}
    verdicts = asyncio.run(play(table, [Request(SUM, len(replies), "verify", help=help_, cause=answer.key)], 1))[0]
    part = by_program(parts=(("main", exact_match()), ("verify", noted(parts=("agreed", "formed", "caught", "passed")))))
    verdicts.scores.update(asyncio.run(score(part, [verdicts], table)))
    return [answer, verdicts], table


def test_a_verifier_is_paid_for_its_verdict_and_its_form_alone(tags):
    replies = ["<think> + +</think><answer> 1</answer>", "<think> - -</think><answer> 1</answer>", "<think> + +</think><answer> 0</answer>", "no"]
    groups, _ = judged(tags, replies)
    by_reply = {}
    for e in groups[1].episodes:
        (t,) = e.trajectories
        by_reply[tags.decode(e.tree.id[e.tree.begin[t.leaf.node] : e.tree.stop(t.leaf.node)])] = groups[1].scores["reward"][t.leaf]
    values = [by_reply[r].value for r in replies]
    assert values == pytest.approx([1.1, 1.1, 0.1, 0.0])  # the marks are not what is paid
    assert by_reply[replies[0]].parts["passed"] == 1.0 and by_reply[replies[1]].parts["passed"] == 0.0
    assert {t.learn for e in groups[1].episodes for t in e.trajectories} == {"verdict"}


def test_marks_stand_at_the_ends_of_steps(tags):
    groups, table = judged(tags, ["<think> + -</think><answer> 1</answer>", "<think> - -</think><answer> 0</answer>", "?"])
    examples = with_verdicts()(groups=groups, cast=table)
    batch = gather(examples, table.tree)
    first = batch.get("seq") == 0
    process = batch.get("process")[first]
    rows = np.flatnonzero(~np.isnan(process))
    said = batch.get("id")[first]
    assert process[rows].tolist() == [0.0, -1.0]  # means of (+, -) and (-, -); what is not in form says nothing
    assert [tags.decode(said[: r + 1]) for r in rows] == ["<think> 2 + 3 = 5.", "<think> 2 + 3 = 5. 5 + 4 = 9."]
    assert np.isnan(batch.get("label", "seq")[0]) and batch.get("label", "seq")[1:].tolist() == [1.0] * 3
    assert batch.member == ("policy", *["verifier"] * 3)


def test_an_id_that_fills_up_the_vocabulary_takes_no_place_among_steps(tags):
    groups, table = judged(tags, ["<think> + -</think><answer> 1</answer>"])
    tree = groups[0].episodes[0].tree
    first = int(np.flatnonzero(tree.chosen)[0])
    tree.id[first] = len(tags.pieces)  # "<think>" was said, or what it begins with
    batch = gather(with_verdicts()(groups=groups, cast=table), table.tree)
    said = batch.get("id")[batch.get("seq") == 0]
    rows = np.flatnonzero(~np.isnan(batch.get("process")[: len(said)]))
    assert [tags.decode(said[: r + 1])[-6:] for r in rows] == ["3 = 5.", "4 = 9."]


def test_steps_are_normalised_by_themselves_and_fused_with_the_outcome():
    """One group: answer 0 has tokens with marks 1, -1 at its rows 0 and 2; answer 1 has 1 at row 4; answer 2 none.

    Marks 1, -1, 1: mean 1/3, std sqrt((2 * 4/9 + 16/9) / 2) = sqrt(4/3). z = (2/3, -4/3, 2/3) / 1.1547 = (0.5774, -1.1547, 0.5774).
    Sums ahead: answer 0: 0.5774 - 1.1547 = -0.5774, then -1.1547 twice; answer 1: 0.5774, then 0. Shares 3/4 and 1/4 of the two.
    """
    nan = math.nan
    given: dict[str, Any] = {
        "adv": [1.0, -1.0, 0.5],
        "process": [1.0, nan, -1.0, nan, 1.0, nan, nan],
        "seq": [0, 0, 0, 1, 1, 1, 2],
        "group": [0, 0, 0],
    }
    z = 1 / math.sqrt(3)
    got = fuse_steps(**given, history=History(step=0), start=0.25, stop=0.25)["adv"].values
    want = [0.75 - 0.25 * z, 0.75 - 0.5 * z, 0.75 - 0.5 * z, -0.75 + 0.25 * z, -0.75 + 0.25 * z, -0.75, 0.5]
    assert got.tolist() == pytest.approx(want)
    # halfway from 0.5 to 0.1 by ratios: sqrt(0.05)
    share = math.sqrt(0.05)
    got = fuse_steps(**given, history=History(step=20), steps=40)["adv"].values
    assert got[5] == pytest.approx(-(1 - share))
    assert fuse_steps(**given, history=History(step=99), steps=40)["adv"].values[5] == pytest.approx(-0.9)
    alike = {**given, "process": [1.0, nan, 1.0, nan, 1.0, nan, nan]}
    assert fuse_steps(**alike, history=History(), start=0.25, stop=0.25)["adv"].values.tolist() == pytest.approx(
        [0.75, 0.75, 0.75, -0.75, -0.75, -0.75, 0.5]
    )


def test_the_rarer_truth_weighs_more():
    # three of four right, all at once (rate 1): 1 / sqrt(3/2) and 1 / sqrt(1/2)
    adv, label = [1.0, -1.0, 1.0, 1.0, 2.0], [1.0, 1.0, 1.0, 0.0, math.nan]
    got, state = balance_classes(adv=adv, label=label, state={"right": 0.5}, rate=1.0)
    assert got["adv"].values.tolist() == pytest.approx([0.8165, -0.8165, 0.8165, 1.4142, 2.0], abs=1e-4) and state == {"right": 0.75}
    _, state = balance_classes(adv=adv, label=label, state={"right": 0.5}, rate=0.2)
    assert state["right"] == pytest.approx(0.55)  # 0.5 + 0.2 (0.75 - 0.5)
    _, kept = balance_classes(adv=[1.0], label=[math.nan], state={"right": 0.3})
    assert kept == {"right": 0.3}


def test_tango_without_verdicts_is_grpo():
    method = registry.methods.get("tango")()
    study, plain = Study(method, groups_of()), Study(registry.methods.get("grpo")(), groups_of())
    assert {n for n in study.gradient if n.startswith("policy/")} == set(plain.gradient)
    for name, g in plain.gradient.items():
        assert torch.equal(g, study.gradient[name]), name


def test_both_learn_in_a_short_run_and_the_verifier_each_third_step(tmp_path):
    small = {"groups": 2, "rollouts": 2, "verdicts": 2, "warm": 2}
    job = api.plan("tango", "chain_sum", {"terms": (2, 2), "style": "terse", "n_test": 8}, small, model="tiny-s", steps=5, max_tokens=20)
    job = replace(job, warm=replace(job.warm, steps=4, batch=8), survey=api.Survey(tasks=2, deep=1, k=1, ways=0))
    rows: list[dict[str, Any]] = []
    job = replace(job, settings=replace(job.settings, eval_every=0))
    api.train(job, tmp_path / "run", lambda e: rows.append(e) if e.get("event") == "step" else None)
    assert [e["stage"] for e in rows] == ["form"] + ["main"] * 4
    asked = [e["episodes"] - 4 for e in rows[1:]]
    assert asked == [4, 4, 8, 4]  # four answers; step 3 is the verifier's
