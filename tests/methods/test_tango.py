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


def test_verdicts_are_parsed_by_their_format():
    assert verdict_of("<think> + - +</think><answer> 1</answer>", 3) == ([1, -1, 1], True)
    assert verdict_of("<think> + -</think><answer> 1</answer>", 3) == (None, True)  # a mark is missing
    assert verdict_of("<think> + ?</think><answer> 2</answer>", 2) == (None, None)
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
    assert values == pytest.approx([1.1, 1.1, 0.1, 0.0])  # the marks are not what is paid
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
    assert process[rows].tolist() == [0.0, -1.0]  # means of (+, -) and (-, -); what is not in form says nothing
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
    """One group: answer 0 has tokens with marks 1, -1 at its rows 0 and 2; answer 1 has 1 at row 4; answer 2 none.

    Marks 1, -1, 1: mean 1/3, std sqrt((2 * 4/9 + 16/9) / 2) = sqrt(4/3). z = (2/3, -4/3, 2/3) / 1.1547 = (0.5774,
    -1.1547, 0.5774). Sums ahead: answer 0: 0.5774 - 1.1547 = -0.5774, then -1.1547 twice; answer 1: 0.5774, then 0.
    Shares 3/4 and 1/4 of the two.
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


def test_the_rarer_class_has_the_larger_weight():
    # three of four right, all at once (rate 1): 1 / sqrt(3/2) and 1 / sqrt(1/2)
    adv, label = [1.0, -1.0, 1.0, 1.0, 2.0], [1.0, 1.0, 1.0, 0.0, math.nan]
    got, state = balance_classes(adv=adv, label=label, state={"right": 0.5}, rate=1.0)
    assert got["adv"].values.tolist() == pytest.approx([0.8165, -0.8165, 0.8165, 1.4142, 2.0], abs=1e-4) and state == {
        "right": 0.75
    }
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


def test_classes_are_smoothed_by_a_fifth_and_held_off_zero():
    rows = {"adv": [1.0, 1.0], "label": [1.0, 0.0]}
    _, state = balance_classes(**rows, state={"right": 1.0})
    assert state["right"] == pytest.approx(0.9)  # 1 + 0.2 (1/2 - 1)
    # a share of 0 or 1 counts as 0.02 or 0.98: weights 1 / sqrt(0.04) = 5 and 1 / sqrt(1.96)
    for right, want in ((0.0, [5.0, 1 / 1.4]), (1.0, [1 / 1.4, 5.0])):
        got, state = balance_classes(**rows, state={"right": right}, rate=0.0)
        assert got["adv"].values.tolist() == pytest.approx(want) and state == {"right": right}
    rows = {"adv": [1.0, 1.0], "label": [1.0, 1.0]}
    got, state = balance_classes(**rows, state={"right": 0.99})  # 0.99 + 0.2 * 0.01, above 0.98
    assert got["adv"].values.tolist() == pytest.approx([1 / 1.4] * 2) and state["right"] == pytest.approx(0.992)


def test_a_demonstrated_verdict_has_a_random_mark_for_each_step(tags):
    drawn: list[list[float]] = []

    async def main(*, request: RolloutRequest, rollout: Any) -> Any:
        draw = rollout.random("verdict")
        drawn.append([draw.random() for _ in range(3)])
        return await read_verdict(request=request, rollout=rollout)

    table = scripted_context(Block(main), [], tags, model_roles=("policy", "verifier"))
    (group,) = asyncio.run(play(table, [RolloutRequest(replace(SUM, data=(TERSE,)), 16)]))
    for (a, b, c), episode in zip(drawn, group.episodes, strict=True):
        # a draw below a half is a mark of right, a verdict of 1
        mark = lambda u: "+" if u < 0.5 else "-"  # noqa: E731
        assert episode.answer == f"<think> {mark(a)} {mark(b)}</think><answer> {int(c < 0.5)}</answer>"
        (t,) = episode.trajectories
        assert (t.role, t.learn) == ("verifier", "verdict")
        assert full_text(episode, tags) == f"{SUM.prompt}{TERSE}\n{episode.answer}"
        assert tags.decode(episode.tree.id[episode.tree.action_mask]) == episode.answer
    assert len({e.answer for e in group.episodes}) > 4


def test_a_verifier_s_marks_are_compared_with_a_judge_of_steps(tags):
    # the first step is wrong, the second right; marks + - catch no wrong step and pass no right one; - + all
    text = "<think> 2 + 3 = 6. 6 + 4 = 10.</think><answer> 10</answer>"
    for marks, caught, passed, area in (("+ -", 0, 0, 0), ("- +", 1, 1, 1), ("- -", 1, 0, 0.5), ("+ +", 0, 1, 0.5)):
        groups, _ = judged(tags, [f"<think> {marks}</think><answer> 0</answer>"], reward=0.0, text=text)
        (found,) = groups[1].scores["reward"].values()
        parts = found.parts
        assert (found.value, parts["caught"], parts["passed"], parts["step_auc"]) == (1.1, caught, passed, area)
        assert found.parts["agreed"] == found.parts["formed"] == 1.0


def test_steps_are_fused_from_a_half_to_a_tenth_over_forty_steps():
    rows: dict[str, Any] = {"adv": [1.0], "process": [1.0, math.nan], "seq": [0, 0], "group": [0]}
    for step, alpha in ((0, 0.5), (20, math.sqrt(0.05)), (40, 0.1), (80, 0.1)):
        got = fuse_steps(**rows, history=History(step=step))["adv"].values
        assert got.tolist() == pytest.approx([1 - alpha] * 2)  # one mark: z is 0
    for start, stop in ((0.0, 0.0), (0.5, 0.6), (1.1, 0.5), (0.5, 0.0)):
        with pytest.raises(BadValue, match="alpha must decrease"):
            fuse_steps(**rows, history=History(), start=start, stop=stop)
    assert fuse_steps(**rows, history=History(), start=1.0, stop=1.0)["adv"].values.tolist() == [0.0, 0.0]


def test_an_answer_of_unknown_reward_is_not_right(tags):
    for reward, right in ((None, 0.0), (0.99, 0.0), (1.0, 1.0)):
        groups, _ = judged(tags, ["<think> + +</think><answer> 1</answer>"], reward=reward)  # type: ignore[arg-type]
        (episode,) = groups[1].episodes
        assert episode.tree.number(episode.trajectories[0].leaf.node, "right") == right
