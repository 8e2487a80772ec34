"""Self-Verification by hand: what is verified, what a verdict is worth, and how verdicts weigh votes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.battery import of
from support.episodes import full_text, scripted_context, single_turn_group

from selfteach.core import RolloutRequest, Task, TaskSource
from selfteach.core.blocks import initial_state
from selfteach.loop.episode import play
from selfteach.methods.self_verification import (
    VERIFY,
    show_with_verdict,
    solve_and_verify,
    verdict_of,
    verdict_reward,
    verified_vote,
    verify_own,
)
from selfteach.rollout.single import single

SUM = Task("t", "2 + 3 =\n", ("5",))
YES, NO = "<think> it adds up</think><answer> Yes</answer>", "<think> it does not</think><answer> no.</answer>"


def test_the_verdict_that_is_mostly_right_is_paid_little():
    # three of four are right: Yes pays 2 (1 - 3/4), No 2 * 3/4; a group of one kind pays its own verdict nothing
    assert verdict_reward(True, True, 0.75, True) == 0.5 and verdict_reward(False, False, 0.75, True) == 1.5
    assert verdict_reward(True, True, 1.0, True) == 0.0 == verdict_reward(False, False, 0.0, True)
    assert verdict_reward(True, False, 0.5, True) == 0.0 == verdict_reward(None, False, 0.5, True)
    # so that always saying one thing earns the same, whichever: 2 c (1 - c); plainly it would earn c or 1 - c
    for c in (0.25, 0.75):
        always = {yes: [verdict_reward(yes, right, c, True) for right in (True, False)] for yes in (True, False)}
        assert {c * a + (1 - c) * b for a, b in always.values()} == {2 * c * (1 - c)}
    assert verdict_reward(True, True, 0.75, False) == 1.0
    assert [verdict_of(t) for t in (YES, NO, "<answer> maybe</answer>", "Yes")] == [True, False, None, None]


def test_solutions_of_the_step_are_verified():
    source = TaskSource("s", train=lambda i: Task(f"t{i}", "p"), test=[])
    part = solve_and_verify(checks=3)
    give: dict[str, Any] = {"n": 2, "rollouts": 4, "source": source, "seed": 0, "step": 0}
    first, state = part(**give, finished_rounds=[], state=initial_state(part))
    assert [(r.n, r.program) for r in first] == [(4, "main")] * 2 and state == 2
    rewards = {"a": [1.0, 1.0, 1.0, 0.0], "b": [0.0, None, None, 1.0]}
    back = [single_turn_group(((1,), (2,), (3,), (4,)), r, key=key) for key, r in rewards.items()]
    again, state = part(**give, finished_rounds=[back], state=state)
    assert [(r.n, r.program) for r in again] == [(4, "verify")] * 3 and state == 2
    everything, _ = solve_and_verify(checks=99)(**give, finished_rounds=[back], state=state)
    assert [r.help["correct"] for r in everything] == [0.75] * 4 + [0.5] * 2, "what is unknown is not verified"
    assert [r.help["reward"] for r in everything] == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    assert {r.help["output"] for r in again} < {r.help["output"] for r in everything}
    other, _ = part(**{**give, "step": 1}, finished_rounds=[back], state=state)
    assert part(**give, finished_rounds=[back], state=state)[0] == again != other
    assert part(**give, finished_rounds=[back, []], state=state) == ([], state)


def verdicts(tokenizer: Any, replies: list[str], told: dict[str, float], **how: Any) -> list[dict[str, float | None]]:
    """The notes of each verdict on one solution."""
    said = iter(["2 and 3 is <answer> 5</answer>", *replies])
    context = scripted_context(single(), lambda *_: next(said), tokenizer)
    context = replace(context, programs={"main": single(), "verify": verify_own(**how)})
    (solved,) = asyncio.run(play(context, [RolloutRequest(SUM, 1)]))
    asked = RolloutRequest(
        SUM, len(replies), "verify", help={"output": solved.episodes[0].trajectories[0].leaf, **told}, cause=solved.key
    )
    (group,) = asyncio.run(play(context, [asked], 1))
    prompt = f"2 + 3 =\n2 and 3 is <answer> 5</answer>\n{VERIFY}\n"
    assert {full_text(e, tokenizer)[: len(prompt)] for e in group.episodes} == {prompt}
    assert {t.learn for e in group.episodes for t in e.trajectories} == {"main"}
    names = ("payoff", "agreed", "agreed_right", "agreed_wrong", "yes", "short")
    notes = [(e.tree, e.trajectories[0].leaf.node) for e in group.episodes]
    return sorted(({n: tree.number(at, n) for n in names} for tree, at in notes), key=lambda n: n["payoff"] or 0.0)


def test_a_verdict_is_paid_and_noted(tags):
    code = YES.replace("it", "```it")
    found = verdicts(tags, [YES, NO, code, "no"], {"reward": 1.0, "correct": 0.25})
    # a right Yes where one of four is right: 2 * 3/4; half less with code; four letters are too few
    assert [n["payoff"] for n in found] == [-0.5, 0.0, 1.0, 1.5]
    assert [n["short"] for n in found] == [1.0, 0.0, 0.0, 0.0] and {n["agreed_wrong"] for n in found} == {None}
    assert [n["agreed_right"] for n in found] == [0.0, 0.0, 1.0, 1.0] == [n["yes"] for n in found]
    plain = verdicts(tags, [YES, NO], {"reward": 0.0, "correct": 0.25}, dynamic=False, penalty=0.0)
    assert [n["payoff"] for n in plain] == [0.0, 1.0] and [n["agreed_wrong"] for n in plain] == [0.0, 1.0]


def voted(tokenizer: Any, verdicts: int, yes: tuple[str, ...]) -> str | None:
    """The vote of four solutions, 7, 7, 7 and 5, whose verdicts are Yes on those named."""
    answers = iter(["7", "7", "7", "5"])

    def reply(text: str, key: object) -> str:
        del key
        if VERIFY in text:
            return YES if any(f"<answer> {a}</answer>" in text for a in yes) else NO
        return f"<answer> {next(answers)}</answer>"

    context = scripted_context(verified_vote(votes=4, verdicts=verdicts), reply, tokenizer)
    (group,) = asyncio.run(play(context, [RolloutRequest(SUM, 1)]))
    closed = [t.learn for t in group.episodes[0].trajectories]
    assert closed.count("main") == 1 and len(closed) == 4 * (1 + verdicts)
    return group.episodes[0].answer


def test_votes_weigh_what_their_verdicts_say(tags):
    assert voted(tags, 0, ("5",)) == "7" and voted(tags, 2, ("5",)) == "5"
    assert voted(tags, 2, ()) == "7" and voted(tags, 1, ("5", "7")) == "7"  # none has a Yes; all have


@pytest.mark.parametrize("says", ["Yes", "No"])
def test_the_form_is_shown_without_any_label(tags, says: str):
    shown = Task("d", "2 + 3 =\n", ("5",), data=("<answer> 9</answer>",))
    context = scripted_context(show_with_verdict(), lambda *_: "", tags)
    (group,) = asyncio.run(play(context, [RolloutRequest(shown, 16)]))
    texts = [[full_text(e, tags, n) for n in range(2)] for e in group.episodes]
    assert all(first.startswith("2 + 3 =\n<answer> 9</answer>") for first, _ in texts)
    assert any(f"<answer> {says}</answer>" in second for _, second in texts), "both, whatever is true"


def test_what_is_asked_in_which_words_and_how_much_is_to_be_said():
    made = of("self_verification", instruction="Right?", yes="1", no="0", least=7)
    form, main = made.stages
    assert main.programs["verify"].args["least"] == 7
    asked = [form.programs["main"], main.programs["verify"], made.decode["verified"]]
    assert [(b.args["instruction"], b.args["yes"]) for b in asked] == [("Right?", "1")] * 3
    assert [b.args["no"] for b in asked[:2]] == ["0", "0"]
    texts = ("<answer> 1</answer>", "<answer> 0</answer>", YES)
    assert [verdict_of(t, "1", "0") for t in texts] == [True, False, None]


def test_without_checks_it_is_grpo():
    assert of("self_verification", checks=0).stages == of("grpo", beta=0.001).stages
