"""RL Tango by hand: verdicts and their rewards, marks at the ends of steps, fused advantages, class balance."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.battery import Study, groups_of
from support.episodes import full_text, scripted_context, single_turn_group

from selfteach import api
from selfteach.configuration import plan
from selfteach.core import (
    BadValue,
    Block,
    RolloutGroup,
    RolloutRequest,
    Score,
    Task,
    TaskSource,
    collate,
    registry,
)
from selfteach.core.contexts import History
from selfteach.core.scoring import score
from selfteach.curriculum.select import reviewed
from selfteach.loop.episode import play
from selfteach.loop.log import Rollouts, pack
from selfteach.methods.tango import (
    balance_classes,
    fuse_steps,
    read_verdict,
    verdict_of,
    verify,
    with_verdicts,
)
from selfteach.reward.answer import exact_match
from selfteach.reward.combine import by_program
from selfteach.reward.payoff import payoff_from_notes
from selfteach.rollout.single import single
from selfteach.tasks.chain_sum import correct_step

SUM = Task("t", "2 + 3 + 4 =\n", ("9",), judges={"step": correct_step()})


TERSE = "<think> 2 + 3 = 5. 5 + 4 = 9.</think><answer> 9</answer>"


def test_a_second_round_requests_verdicts_on_each_answer():
    source = TaskSource("s", train=lambda i: Task(f"t{i}", "p"), test=[])
    give: dict[str, Any] = {"n": 2, "rollouts": 2, "source": source, "seed": 0, "state": 0}
    select = reviewed(program="verify", times=4, every=3)
    first, state = select(**give, finished_rounds=[], step=0)
    assert [r.n for r in first] == [2, 2] and state == 2
    back = [[single_turn_group(((1,), (2,)), [1.0, 0.0], key=r.task.id) for r in first]]
    again, state = select(**{**give, "state": state}, finished_rounds=back, step=3)
    assert len(again) == 4 and {r.n for r in again} == {4} and {r.program for r in again} == {"verify"} and state == 2
    assert [r.help["reward"] for r in again[:2]] == [1.0, 0.0]
    assert [r.help["output"] for r in again[:2]] == [e.trajectories[0].leaf for e in back[0][0].episodes]
    assert {r.cause for r in again} == {g.key for g in back[0]}
    assert {r.n for r in select(**give, finished_rounds=back, step=4)[0]} == {1}  # between each `every`
    assert select(**give, finished_rounds=[*back, []], step=3) == ([], 0)


@pytest.mark.parametrize(
    ("text", "marks", "final", "formed"),
    [
        ("<think> + - +</think><answer> 1</answer>", [1, -1, 1], True, 1.0),
        ("<think> + -</think><answer> 1</answer>", None, True, 0.2),  # a mark is missing: 1 - 0.8
        ("<think></think><answer> 0</answer>", None, False, 0.2),
        ("<think> + so - +</think><answer> 0</answer>", [1, -1, 1], False, 0.6),  # another word: 1 - 0.4
        ("<think> + ?</think><answer> 1</answer>", None, True, 0.0),  # both
        ("<think> + - +</think><answer> 2</answer>", [1, -1, 1], None, 0.0),  # no verdict
        ("so <think> + - +</think><answer> 1</answer>", [1, -1, 1], True, 0.0),  # text around the two parts
        ("no", None, None, 0.0),
    ],
)
def test_the_form_of_a_verdict_is_graded(text, marks, final, formed):
    assert verdict_of(text, 3) == (marks, final, pytest.approx(formed))


def test_a_step_is_right_as_its_sum_is():
    assert [correct_step(step=s) for s in (" 2 + 3 = 5.", " 5 - 4 = 9.", " we start with 5.")] == [True, False, None]


def judged(
    tokenizer: Any, replies: list[str], reward: float = 1.0, text: str = TERSE
) -> tuple[list[RolloutGroup], Any]:
    """An answer's group with `replies` as the verdicts on it."""
    said = iter([text, *replies])
    context = scripted_context(single(), lambda *_: next(said), tokenizer, model_roles=("policy", "verifier"))
    context = replace(context, programs={"main": single(), "verify": verify()})
    answer = asyncio.run(play(context, [RolloutRequest(SUM, 1)]))[0]
    leaf = answer.episodes[0].trajectories[0].leaf
    answer.scores["reward"] = {leaf: Score(reward)}
    help_ = {"output": leaf, "reward": reward}
    verdicts = asyncio.run(
        play(context, [RolloutRequest(SUM, len(replies), "verify", help=help_, cause=answer.key)], 1)
    )[0]
    part = by_program(
        parts=(
            ("main", exact_match()),
            ("verify", payoff_from_notes(parts=("agreed", "formed", "caught", "passed", "step_auc"))),
        )
    )
    verdicts.scores.update(asyncio.run(score(part, [verdicts], context)))
    return [answer, verdicts], context


def test_a_verifier_is_rewarded_for_its_verdict_and_its_format_alone(tags):
    replies = [
        "<think> + +</think><answer> 1</answer>",
        "<think> - -</think><answer> 1</answer>",
        "<think> + +</think><answer> 0</answer>",
        "no",
    ]
    groups, _ = judged(tags, replies)
    by_reply = {}
    for e in groups[1].episodes:
        (t,) = e.trajectories
        by_reply[tags.decode(e.tree.id[e.tree.begin[t.leaf.node] : e.tree.stop(t.leaf.node)])] = groups[1].scores[
            "reward"
        ][t.leaf]
    values = [by_reply[r].value for r in replies]
    assert values == pytest.approx([1.8, 1.8, 0.8, 0.0])  # the marks are not what is paid
    assert by_reply[replies[0]].parts["passed"] == 1.0 and by_reply[replies[1]].parts["passed"] == 0.0
    marks = [e.tree.numbers(e.trajectories[0].leaf.node, "marks") for e in groups[1].episodes]
    assert sorted(m for m in marks if m) == [(-1.0, -1.0), (1.0, 1.0), (1.0, 1.0)] and marks.count(None) == 1
    assert {t.learn for e in groups[1].episodes for t in e.trajectories} == {"verdict"}


def test_marks_are_at_the_last_tokens_of_steps(tags):
    groups, context = judged(
        tags, ["<think> + -</think><answer> 1</answer>", "<think> - -</think><answer> 0</answer>", "?"]
    )
    examples = with_verdicts()(groups=groups, context=context)
    batch = collate(examples, context.tree)
    first = batch.get("seq") == 0
    process = batch.get("process")[first]
    rows = np.flatnonzero(~np.isnan(process))
    said = batch.get("id")[first]
    # means of (+, -) and (-, -), over two steps; what is not in form says nothing
    assert process[rows].tolist() == [0.0, -0.5]
    assert [tags.decode(said[: r + 1]) for r in rows] == ["<think> 2 + 3 = 5.", "<think> 2 + 3 = 5. 5 + 4 = 9."]
    assert np.isnan(batch.get("label", "seq")[0]) and batch.get("label", "seq")[1:].tolist() == [1.0] * 3
    assert batch.model_role == ("policy", *["verifier"] * 3)


def test_a_reserved_token_does_not_shift_the_marks(tags):
    groups, context = judged(tags, ["<think> + -</think><answer> 1</answer>"])
    tree = groups[0].episodes[0].tree
    first = int(np.flatnonzero(tree.action_mask)[0])
    tree._tokens["id"][first] = len(tags.pieces)  # "<think>" was said, or what it begins with
    batch = collate(with_verdicts()(groups=groups, context=context), context.tree)
    said = batch.get("id")[batch.get("seq") == 0]
    rows = np.flatnonzero(~np.isnan(batch.get("process")[: len(said)]))
    assert [tags.decode(said[: r + 1])[-6:] for r in rows] == ["3 = 5.", "4 = 9."]


def test_steps_are_normalised_by_themselves_and_fused_with_the_outcome():
    """One group: answer 0 has tokens with marks 1, -1 of two steps at its rows 0 and 2; answer 1 has 1 of one step at
    row 4; answer 2 none; and a verdict, which has none either.

    Marks over steps 1/2, -1/2, 1: mean 1/3, std sqrt((1/36 + 25/36 + 16/36) / 2) = sqrt(7/12) = 0.7638. z = (1/6, -5/6,
    4/6) / 0.7638 = (0.2182, -1.0911, 0.8729). Sums ahead: answer 0: -0.8729, then -1.0911 twice; answer 1: 0.8729, then
    0. Shares 3/4 and 1/4 of the two; answer 2 has 3/4 of its outcome, the verdict all of it.
    """
    nan = math.nan
    given: dict[str, Any] = {
        "adv": [1.0, -1.0, 0.5, 2.0],
        "process": [0.5, nan, -0.5, nan, 1.0, nan, nan, nan],
        "label": [nan, nan, nan, 1.0],
        "seq": [0, 0, 0, 1, 1, 1, 2, 3],
        "group": [0, 0, 0, 1],
        "batch": [0] * 8,
    }
    got = fuse_steps(**given, history=History(step=0), start=0.25, stop=0.25)["adv"].values
    first, second, third = 0.75 - 0.2182, 0.75 - 0.2728, -0.75 + 0.2182
    assert got.tolist() == pytest.approx([first, second, second, third, third, -0.75, 0.375, 2.0], abs=1e-4)
    # halfway from 0.1 to 0.001 by ratios: 0.01
    got = fuse_steps(**given, history=History(step=20), steps=40)["adv"].values
    assert got[5] == pytest.approx(-0.99)
    assert fuse_steps(**given, history=History(step=99), steps=40)["adv"].values[5] == pytest.approx(-0.999)
    alike = {**given, "process": [0.5, nan, 0.5, nan, 0.5, nan, nan, nan]}
    assert fuse_steps(**alike, history=History(), start=0.25, stop=0.25)["adv"].values.tolist() == pytest.approx(
        [0.75, 0.75, 0.75, -0.75, -0.75, -0.75, 0.375, 2.0]
    )
    # without a mark in the whole batch the outcome is all there is
    none = fuse_steps(**{**given, "process": [nan] * 8}, history=History(), start=0.25, stop=0.25)["adv"].values
    assert none.tolist() == [1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.5, 2.0]


def balanced(adv: list[float], label: list[float], state: dict[str, float], step: int = 3, **given: Any) -> Any:
    found, state = balance_classes(
        adv=adv, label=label, batch=[0] * len(adv), history=History(step=step), state=state, **given
    )
    return found["adv"].values.tolist(), state


def test_the_rarer_class_has_the_larger_weight():
    # three of four right, the first batch: 1 / sqrt(3/4) = 1.1547 and 1 / sqrt(1/4) = 2, whose mean over the four is
    # (3 * 1.1547 + 2) / 4 = 1.3660: 0.8453 and 1.4641
    adv, label = [1.0, -1.0, 1.0, 1.0, 2.0], [1.0, 1.0, 1.0, 0.0, math.nan]
    got, state = balanced(adv, label, {})
    assert got == pytest.approx([0.8453, -0.8453, 0.8453, 1.4641, 2.0], abs=1e-4) and state == {"right": 0.75}
    # 0.8 * 0.5 + 0.2 * 0.75 = 0.55, of the wrong 0.45: 1.3484 and 1.4907, mean 1.3840
    got, state = balanced(adv, label, {"right": 0.5})
    assert got == pytest.approx([0.9743, -0.9743, 0.9743, 1.0771, 2.0], abs=1e-4)
    assert state["right"] == pytest.approx(0.55)
    assert balanced(adv, label, {"right": 0.5}, decay=0.0)[1] == {"right": 0.75}
    # without a verdict, or at a step at which the verifier does not learn, nothing happens
    assert balanced([1.0], [math.nan], {"right": 0.3}) == ([1.0], {"right": 0.3})
    assert balanced(adv, label, {"right": 0.5}, step=4) == (adv, {"right": 0.5})
    assert balanced(adv, label, {"right": 0.5}, step=4, every=2)[1] != {"right": 0.5}


def test_a_class_that_is_missing_leaves_the_other_as_it_is():
    assert balanced([1.0, -1.0], [0.0, 0.0], {})[0] == pytest.approx([1.0, -1.0])
    assert balanced([1.0, -1.0], [1.0, 1.0], {})[0] == pytest.approx([1.0, -1.0])
    # all wrong before, and one of two right now: shares 0.1 and 0.9, weights 3.1623 and 1.0541, mean 2.1082
    got, state = balanced([1.0, 1.0], [1.0, 0.0], {"right": 0.0})
    assert got == pytest.approx([1.5, 0.5], abs=1e-4) and state["right"] == pytest.approx(0.1)


def test_both_models_have_a_pull_to_where_they_began_and_an_entropy_bonus():
    method = registry.methods.get("tango")()
    for update, stream, reference in zip(
        method.stage.updates, ("main", "verdict"), ("ref_logp", "formed_logp"), strict=True
    ):
        assert [(t.fn.name, t.on, t.coef) for t in update.terms] == [
            ("clipped_ratio", (stream,), 1.0),
            ("kl", (stream,), 0.001),
            ("entropy_bonus", (stream,), 0.001),
        ]
        assert reference in update.terms[1].fn.columns
    assert method.stage.enter == {"formed": "verifier"} and method.models["formed"].weights == ("formed",)
    plain = registry.methods.get("tango")(beta=0.0, bonus=0.0)
    assert [len(u.terms) for u in plain.stage.updates] == [1, 1] and "formed" not in plain.weights


def test_tango_without_verdicts_is_grpo():
    method = registry.methods.get("tango")(beta=0.0, bonus=0.0)
    study, plain = Study(method, groups_of()), Study(registry.methods.get("grpo")(), groups_of())
    assert {n for n in study.gradient if n.startswith("policy/")} == set(plain.gradient)
    for name, g in plain.gradient.items():
        assert torch.equal(g, study.gradient[name]), name


def test_both_learn_in_a_short_run_and_the_verifier_each_third_step(tmp_path):
    small = {"groups": 2, "rollouts": 2, "verdicts": 2, "warmup_minibatches": 2}
    run_config = plan(
        "tango",
        "chain_sum",
        {"terms": (2, 2), "style": "terse", "n_test": 8},
        args=small,
        model="tiny-s",
        steps=5,
        max_tokens=20,
    )
    run_config = replace(
        run_config,
        warm=replace(run_config.warm, steps=4, batch=8),
        final_eval=api.EvalConfig(tasks=2, pass_at_k_tasks=1, k=1, decoder_samples=0),
    )
    rows: list[dict[str, Any]] = []
    run_config = replace(run_config, settings=replace(run_config.settings, eval_every=0))
    api.train(run_config, tmp_path / "run", lambda e: rows.append(e) if e.get("event") == "step" else None)
    assert [e["stage"] for e in rows] == ["form"] + ["main"] * 4
    asked = [e["rollout/episodes"] - 4 for e in rows[1:]]
    assert asked == [4, 4, 8, 4]  # four answers; step 3 is the verifier's


def test_notes_are_numbers_or_sequences_of_numbers_and_come_back_from_the_log(tags, tmp_path):
    groups, _ = judged(tags, ["<think> + -</think><answer> 1</answer>"])
    (episode,) = groups[1].episodes
    node = episode.trajectories[0].leaf.node
    (tmp_path / "step.npz").write_bytes(pack(groups, None))
    for tree in (episode.tree, Rollouts(tmp_path / "step.npz").tree(episode.id)):
        assert tree.numbers(node, "marks") == (1.0, -1.0) and tree.number(node, "marks") is None
        assert tree.number(node, "right") == 1.0 and tree.numbers(node, "right") is None
        assert tree.number(node, "worth") is None


@pytest.mark.parametrize("true", [0.7, 1.0, 0.0])
def test_a_demonstrated_verdict_follows_from_marks_of_which_a_share_is_true(tags, true):
    text = "<think> 2 + 3 = 5. 5 + 4 = 8.</think><answer> 8</answer>"  # its second step is wrong
    drawn: list[list[bool]] = []

    async def main(*, request: RolloutRequest, rollout: Any) -> Any:
        draw = rollout.random("verdict")
        drawn.append([bool(draw.random() < true) for _ in range(2)])
        return await read_verdict(request=request, rollout=rollout, true=true)

    table = scripted_context(Block(main), [], tags, model_roles=("policy", "verifier"))
    (group,) = asyncio.run(play(table, [RolloutRequest(replace(SUM, data=(text,)), 32)]))
    for (first, second), episode in zip(drawn, group.episodes, strict=True):
        marks = f"{'+' if first else '-'} {'-' if second else '+'}"
        assert episode.answer == f"<think> {marks}</think><answer> {int(marks == '+ +')}</answer>"
        (t,) = episode.trajectories
        assert (t.role, t.learn) == ("verifier", "verdict")
        assert full_text(episode, tags) == f"{SUM.prompt}{text}\n{episode.answer}"
        assert tags.decode(episode.tree.id[episode.tree.action_mask]) == episode.answer
    assert len({e.answer for e in group.episodes}) == (4 if true == 0.7 else 1)


def test_a_verifier_s_marks_are_compared_with_a_judge_of_steps(tags):
    # the first step is wrong, the second right; marks + - catch no wrong step and pass no right one; - + all
    text = "<think> 2 + 3 = 6. 6 + 4 = 10.</think><answer> 10</answer>"
    for marks, caught, passed, area in (("+ -", 0, 0, 0), ("- +", 1, 1, 1), ("- -", 1, 0, 0.5), ("+ +", 0, 1, 0.5)):
        groups, _ = judged(tags, [f"<think> {marks}</think><answer> 0</answer>"], reward=0.0, text=text)
        (found,) = groups[1].scores["reward"].values()
        parts = found.parts
        assert (found.value, parts["caught"], parts["passed"], parts["step_auc"]) == (1.8, caught, passed, area)
        assert found.parts["agreed"] == found.parts["formed"] == 1.0


def test_steps_are_fused_from_a_tenth_to_a_thousandth_over_sixty_steps():
    rows: dict[str, Any] = {
        "adv": [1.0],
        "process": [0.5, math.nan],
        "label": [math.nan],
        "seq": [0, 0],
        "group": [0],
        "batch": [0, 0],
    }
    for step, alpha in ((0, 0.1), (30, 0.01), (60, 0.001), (80, 0.001)):
        got = fuse_steps(**rows, history=History(step=step))["adv"].values
        assert got.tolist() == pytest.approx([1 - alpha + alpha / 2, 1 - alpha])  # of a single mark z is the mark
    for start, stop in ((0.0, 0.0), (0.5, 0.6), (1.1, 0.5), (0.5, 0.0)):
        with pytest.raises(BadValue, match="alpha must decrease"):
            fuse_steps(**rows, history=History(), start=start, stop=stop)
    assert fuse_steps(**rows, history=History(), start=1.0, stop=1.0)["adv"].values.tolist() == [0.5, 0.0]


def test_an_answer_of_unknown_reward_is_not_right(tags):
    for reward, right in ((None, 0.0), (0.99, 0.0), (1.0, 1.0)):
        groups, _ = judged(tags, ["<think> + +</think><answer> 1</answer>"], reward=reward)  # type: ignore[arg-type]
        (episode,) = groups[1].episodes
        assert episode.tree.number(episode.trajectories[0].leaf.node, "right") == right
