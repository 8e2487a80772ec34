"""Self-Verification by hand: what is verified, what a verdict is worth, and how verdicts weigh votes."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.answers import answered_group, paid
from support.battery import of
from support.episodes import full_text, scripted_context, single_turn_group

from selfteach.core import RolloutRequest, Task, TaskSource
from selfteach.core.blocks import initial_state
from selfteach.curriculum.select import next_tasks
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


SOURCE = TaskSource("s", train=lambda i: Task(f"t{i}", "p"), test=[])


def steps(rewards: list[dict[str, list[float | None]]], part: Any, n: int = 2) -> tuple[list[list[Any]], Any]:
    """The requests of each step whose groups get these rewards, and the state in the end, which goes through JSON."""
    state, asked = initial_state(part), list[list[Any]]()
    give: dict[str, Any] = {"n": n, "rollouts": 4, "source": SOURCE, "seed": 0}
    for step, found in enumerate(rewards):
        requests, same = part(**give, step=step, finished_rounds=[], state=state)
        assert same == state, "nothing is known yet"
        solved = [single_turn_group(((1,), (2,), (3,), (4,)), r, key=f"{step}{k}") for k, r in found.items()]
        checked = [single_turn_group(((5,),), [1.0], key="v") for r in requests if r.program == "verify"]
        again, state = part(**give, step=step, finished_rounds=[[*solved, *checked]], state=state)
        asked, state = [*asked, requests], json.loads(json.dumps(state))
        assert again == []
    return asked, state


MIXED: dict[str, list[float | None]] = {"a": [1.0, 1.0, 1.0, 0.0], "b": [0.0, None, 0.5, -0.5]}
ALIKE: dict[str, list[float | None]] = {"a": [1.0] * 4, "b": [0.0] * 4}


def test_solutions_of_earlier_steps_are_verified_until_others_replace_them():
    asked, state = steps([MIXED, ALIKE, MIXED, ALIKE, ALIKE], solve_and_verify(checks=3, buffer=2))
    assert [[r.program for r in step] for step in asked[:2]] == [["main"] * 2] * 2, "the buffer is empty"
    first = next_tasks(SOURCE, 0, 0, 6)
    assert [r.task for step in asked for r in step if r.program == "main"][:6] == first and state["taken"] == 10
    checks = [[r for r in step if r.program == "verify"] for step in asked]
    assert [len(c) for c in checks] == [0, 0, 3, 3, 3] and {r.n for c in checks for r in c} == {4}
    # Of the first two steps five can be verified: a's four, of which 3/4 are right, and the one of b without code, of
    # whose known rewards one of three is above 0. Groups of one kind have none.
    told = [r.help for c in checks[2:4] for r in c]
    places = [tuple(t["output"]) for t in told]
    assert len(set(places)) == 5 and places[5] == places[0], "each once before any is again"
    assert {(p[0], t["reward"], t["correct"]) for p, t in zip(places, told, strict=True)} == {
        *((f"train/0/0/0a/{i}", float(i < 3), 0.75) for i in range(4)),
        ("train/0/0/0b/0", 0.0, 1 / 3),
    }
    assert {r.task.id for c in checks[2:4] for r in c} == {t.id for t in first[:2]}
    # then they are those of the third step, whose tasks are the fifth and sixth
    assert {r.help["output"][0][:12] for r in checks[4]} <= {"train/0/0/2a", "train/0/0/2b"}
    assert {r.task.id for r in checks[4]} <= {t.id for t in first[4:]}


def test_as_many_solutions_are_kept_as_will_be_asked_for():
    asked, state = steps([MIXED] * 8, solve_and_verify(checks=2, buffer=1))
    assert len(state["buffer"]) == 2 and [len(step) for step in asked] == [2] + [4] * 7
    drawn = {tuple(r.help["output"][0][-2:] for r in step[2:]) for step in asked[1:]}
    assert len(drawn) > 2, "at random, each time others"
    _, none = steps([ALIKE], solve_and_verify(checks=2, buffer=1))
    assert none["buffer"] == []


def test_a_block_of_code_costs_a_solution(tags):
    # right without and with code, wrong with code, right with code in the thought and with a block that does not end
    code = "```python 2 + 3 ```"
    texts = ["<answer> 5</answer>", f"{code}<answer> 5</answer>", f"{code}<answer> 6</answer>"]
    texts += [f"<think> {code}</think><answer> 5</answer>", "```python<answer> 5</answer>"]
    group, context, _ = answered_group(texts, "5", tags, lambda text: [0.0])
    (reward,) = of("self_verification").stages[1].reward
    found = paid(reward, group, context=context)
    assert [s.value for s in found] == [1.0, 0.5, -0.5, 1.0, 1.0]
    assert [s.parts["code"] for s in found] == [0.0, 1.0, 1.0, 0.0, 0.0]
    (free,) = of("self_verification", penalty=0.0).stages[1].reward
    assert [s.value for s in paid(free, group, context=context)] == [1.0, 1.0, 0.0, 1.0, 1.0]


def verdicts(tokenizer: Any, replies: list[str], told: dict[str, float], **how: Any) -> list[dict[str, float | None]]:
    """The notes of each verdict on one solution."""
    said = iter(["2 and 3 is <answer> 5</answer>", *replies])
    context = scripted_context(single(), lambda *_: next(said), tokenizer)
    context = replace(context, programs={"main": single(), "verify": verify_own(**how)})
    (solved,) = asyncio.run(play(context, [RolloutRequest(SUM, 1)]))
    asked = RolloutRequest(
        SUM, len(replies), "verify", help={"output": list(solved.episodes[0].trajectories[0].leaf), **told}
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
    # a right Yes where one of four is right: 2 * 3/4, with code too; four letters are too few
    assert [n["payoff"] for n in found] == [-0.5, 0.0, 1.5, 1.5]
    assert [n["short"] for n in found] == [1.0, 0.0, 0.0, 0.0] and {n["agreed_wrong"] for n in found} == {None}
    assert [n["agreed_right"] for n in found] == [0.0, 0.0, 1.0, 1.0] == [n["yes"] for n in found]
    plain = verdicts(tags, [YES, NO], {"reward": 0.0, "correct": 0.25}, dynamic=False, penalty=0.0)
    assert [n["payoff"] for n in plain] == [0.0, 1.0] and [n["agreed_wrong"] for n in plain] == [0.0, 1.0]


def voted(tokenizer: Any, alpha: float, belief: dict[str, float | None]) -> str | None:
    """The vote of four solutions, 7, 7, 7 and 5, in which the policy believes so far; None: it comes to no verdict."""
    answers = iter(["7", "7", "7", "5"])
    believed = lambda text: next(p for a, p in belief.items() if f"<answer> {a}</answer>" in text)  # noqa: E731

    def reply(text: str, key: object) -> str:
        del key
        if VERIFY not in text:
            return f"<answer> {next(answers)}</answer>"
        return "no verdict" if believed(text) is None else YES

    context = scripted_context(verified_vote(votes=4, alpha=alpha), reply, tokenizer)
    engine: Any = context.engine

    async def score(model_role: str, ids: Any, tokens: Any, want: tuple[str, ...]) -> dict[str, Any]:
        text = tokenizer.decode(ids)
        assert tokenizer.decode(tokens) == " Yes" and want == ("raw_logp",)
        p = believed(text)
        assert text.endswith("<think> it adds up</think><answer>") or p is None
        return {"raw_logp": np.full(len(tokens), math.log(p or 1.0) / len(tokens))}  # all its tokens together: p

    engine.score = score
    (group,) = asyncio.run(play(context, [RolloutRequest(SUM, 1)]))
    closed = [t.learn for t in group.episodes[0].trajectories]
    assert closed.count("main") == 1 and len(closed) == (8 if alpha else 4)
    asked = [sampling.temperature for _, text, sampling, _ in engine.calls if VERIFY in text]
    assert asked == [0.0] * (4 if alpha else 0), "one greedy rationale each"
    return group.episodes[0].answer


def test_votes_weigh_as_much_as_the_policy_believes_in_them(tags):
    # 3 * 0.3 against 0.96, but 3 * 0.3^0.1 = 2.66; 3 * 0.3^2 = 0.27 against 0.5^2; 3 * 0.5 against 1
    assert voted(tags, 1.0, {"7": 0.3, "5": 0.96}) == "5" != voted(tags, 0.1, {"7": 0.3, "5": 0.96})
    assert voted(tags, 2.0, {"7": 0.3, "5": 0.5}) == "7" == voted(tags, 1.0, {"7": 0.5, "5": 1.0})
    assert voted(tags, 0.0, {"7": 0.1, "5": 1.0}) == "7", "without verdicts"
    assert voted(tags, 1.0, {"7": None, "5": 0.01}) == "5" and voted(tags, 1.0, {"7": None, "5": None}) == "7"


@pytest.mark.parametrize("says", ["Yes", "No"])
def test_the_form_is_shown_without_any_label(tags, says: str):
    shown = Task("d", "2 + 3 =\n", ("5",), data=("<answer> 9</answer>",))
    context = scripted_context(show_with_verdict(), lambda *_: "", tags)
    (group,) = asyncio.run(play(context, [RolloutRequest(shown, 16)]))
    texts = [[full_text(e, tags, n) for n in range(2)] for e in group.episodes]
    assert all(first.startswith("2 + 3 =\n<answer> 9</answer>") for first, _ in texts)
    assert any(f"<answer> {says}</answer>" in second for _, second in texts), "both, whatever is true"


@pytest.mark.parametrize(("answer", "says"), [("5", "Yes"), ("9", "No")])
def test_the_form_can_be_shown_by_verdicts_that_are_true(tags, answer: str, says: str):
    shown = Task("d", "2 + 3 =\n", ("5",), data=(f"<answer> {answer}</answer>",))
    context = scripted_context(show_with_verdict(true=1.0), lambda *_: "", tags)
    (group,) = asyncio.run(play(context, [RolloutRequest(shown, 8)]))
    assert all(f"<answer> {says}</answer>" in full_text(e, tags, 1) for e in group.episodes)


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
    assert of("self_verification", buffer=0).stages == of("grpo", beta=0.001).stages
