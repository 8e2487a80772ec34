"""SELF by hand: what is asked of whom, what is kept, what is learned, and where a round begins."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.battery import of
from support.episodes import full_text, scripted_context, single_turn_group

from selfteach.core import RolloutGroup, RolloutRequest, Task, TaskSource
from selfteach.core.blocks import initial_state
from selfteach.core.scoring import score
from selfteach.loop.episode import play
from selfteach.methods.self_evolution import refine_own, refined, self_made, vote_own, with_demonstrations
from selfteach.rollout.judging import JUDGE, REFINE

TASK = Task("t", "Q\n", ("7",))


def played(program: Any, tokenizer: Any, first: str, better: str, score_of_better: str) -> tuple[RolloutGroup, Any]:
    """The episode of one question: what is answered, what is answered better, and what is said of that."""

    def reply(text: str, key: int) -> str:
        del key
        if text.endswith(f"{REFINE}\n"):
            return better
        if text.endswith(f"{JUDGE}\n"):
            judged = f"<answer> {text.splitlines()[1]}</answer>"
            return f"<answer> {score_of_better if judged == better else 10}</answer>"
        return first

    context = scripted_context(program, reply, tokenizer, model_roles=("policy", "teacher", "ref"))
    (group,) = asyncio.run(play(context, [RolloutRequest(TASK, 1)]))
    group.scores.update(asyncio.run(score(self_made(), [group], context)))
    return group, context


def learned(group: RolloutGroup, tokenizer: Any) -> list[str]:
    (e,) = group.episodes
    (compose,) = of("self_evolution").stage.credit
    kept = {example.name for example in compose(groups=[group])}
    return [full_text(e, tokenizer, n) for n, t in enumerate(e.trajectories) if f"{e.id}:{t.leaf.node}" in kept]


def parts(group: RolloutGroup) -> dict[str, float]:
    return {n: v for s in group.scores["reward"].values() for n, v in s.parts.items()}


def test_a_better_answer_is_learned_after_the_question_alone(tags):
    group, context = played(refine_own(), tags, "<answer> 5</answer>", "<answer> 7</answer>", "100")
    assert learned(group, tags) == ["Q\n<answer> 7</answer>"]
    assert parts(group) == {"kept": 1.0, "right_first": 0.0, "right_refined": 1.0, "right_kept": 1.0}
    assert group.episodes[0].answer == "7" and [s.value for s in group.scores["reward"].values()] == [1.0]
    assert {role for role, *_ in context.engine.calls} == {"teacher"}, "what the policy becomes does not teach it"
    asked = [text for _, text, *_ in context.engine.calls]
    feedback = f"Q\n5\n{JUDGE}\n"
    better = f"{feedback}<answer> 10</answer>\n{REFINE}\n"
    assert asked == ["Q\n", feedback, better, f"Q\n7\n{JUDGE}\n"]
    heats = [sampling.temperature for _, _, sampling, _ in context.engine.calls]
    assert heats == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("verdict", ["99", "no"])
def test_what_is_not_found_good_is_not_learned(tags, verdict: str):
    group, _ = played(refine_own(), tags, "<answer> 5</answer>", "<answer> 7</answer>", verdict)
    assert learned(group, tags) == [] and parts(group) == {"kept": 0.0, "right_first": 0.0, "right_refined": 1.0}
    group, context = played(refine_own(filtered=False), tags, "<answer> 5</answer>", "<answer> 7</answer>", verdict)
    assert learned(group, tags) == ["Q\n<answer> 7</answer>"] and len(context.engine.calls) == 3
    group, _ = played(refine_own(filtered=False), tags, "<answer> 5</answer>", "seven", verdict)
    assert learned(group, tags) == [], "what stands in no tags"


def test_without_feedback_the_majority_is_learned(tags):
    replies = iter([f"<answer> {a}</answer>" for a in ("3", "7", "5", "7")])
    context = scripted_context(vote_own(votes=4), lambda *_: next(replies), tags, model_roles=("policy", "teacher"))
    (group,) = asyncio.run(play(context, [RolloutRequest(TASK, 1)]))
    assert learned(group, tags) == ["Q\n<answer> 7</answer>"] and group.episodes[0].answer == "7"


def test_the_better_answer_is_decoded(tags):
    said = {"<answer> 5</answer>", "<answer> 7</answer>"}
    group, context = played(refined(), tags, *sorted(said), "100")
    assert group.episodes[0].answer == "7" and {role for role, *_ in context.engine.calls} == {"policy"}


def test_a_demonstration_of_which_nothing_was_noted_has_the_reward_1():
    group = single_turn_group([(1,)], [None])
    assert [s.value for s in self_made()(group=group)["reward"].values()] == [1.0]


def test_demonstrations_stand_beside_the_questions():
    shown = Task("d", "p", data=("x",))
    source = TaskSource(
        "s", train=lambda i: Task(f"t{i}", "p"), test=[], demos=lambda i: Task(f"d{i}", "p", data=shown.data)
    )
    part = with_demonstrations(batch=3)
    give: dict[str, Any] = {"n": 2, "rollouts": 1, "source": source, "seed": 0}
    requests, state = part(**give, finished_rounds=[], state=initial_state(part))
    assert [(r.program, r.task.id) for r in requests][2:] == [("meta", f"d{i}") for i in range(3)]
    assert [r.n for r in requests[2:]] == [1, 1, 1]
    again, _ = part(**give, finished_rounds=[], state=state)
    assert [r.task.id for r in again][2:] == ["d3", "d4", "d5"] and part(**give, finished_rounds=[[]], state=state) == (
        [],
        state,
    )


def test_a_round_begins_with_the_start_and_is_taught_by_the_last():
    assert list(of("self_evolution").stage.enter.items()) == [("teacher", "policy"), ("policy", "ref")]
    assert of("self_evolution", restart=False).stage.enter == {"teacher": "policy"}
    named = of("self_evolution", judge_instruction="Good?", refine_instruction="Better?")
    for program in (named.stage.programs["main"], named.decode["refined"]):
        assert program.args == {"judge_instruction": "Good?", "refine_instruction": "Better?"} | {
            n: v for n, v in program.args.items() if n == "filtered"
        }
    assert (
        of("self_evolution", rounds=2, round_steps=9).repeat == 2
        and of("self_evolution", round_steps=9).stage.until == 9
    )
