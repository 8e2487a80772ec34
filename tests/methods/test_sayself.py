"""SaySelf: the calibration reward by hand, what a demonstration of one's own says, and the confidence that is read."""

from __future__ import annotations

import asyncio

import pytest
from support.battery import of
from support.episodes import full_text, scripted_context

from selfteach.core import Task
from selfteach.core.scoring import score
from selfteach.core.task import RolloutRequest
from selfteach.loop.episode import play
from selfteach.methods.sayself import calibrated, own_reflection, with_confidence


def said(text: str, at: int) -> str:
    """What is said after a text: an answer, a reflection or a confidence, by the question's first letter."""
    if text.endswith("Reflection:"):
        return " or 7\n"
    if text.endswith("Confidence:"):
        return {"a": " 8\n", "b": " 8\n", "c": " much\n", "d": " 30\n"}[text[0]]
    return "so<answer> 4</answer>"


def played(letters, program, questions: str, replies=said):
    context = scripted_context(program, replies, letters, model_roles=("policy", "ref"))
    requests = [RolloutRequest(Task(q, f"{q} ", ("5" if q == "b" else "4",)), 1, key=q) for q in questions]
    groups = asyncio.run(play(context, requests))
    assert {e.status for g in groups for e in g.episodes} == {"done"}, groups[0].episodes[0].why
    return context, groups


def rewards(letters, **options):
    context, groups = played(letters, with_confidence(), "abcd")
    found = asyncio.run(score(calibrated(**options), groups, context))["reward"]
    return [found[g.episodes[0].trajectories[0].leaf] for g in groups]


def test_the_reward_is_largest_at_the_chance_of_being_right(letters):
    # right at 0.8: 1 - 2 0.04; wrong at 0.8: 1 - 2 0.64; right without a number, 0: 1 - 2; right at 10 of 10: 1
    got = rewards(letters, rule="quadratic")
    assert [s.value for s in got] == pytest.approx([0.92, -0.28, -1.0, 1.0])
    assert [s.parts["brier"] for s in got] == pytest.approx([0.04, 0.64, 1.0, 0.0])
    assert [s.value for s in rewards(letters, rule="linear")] == pytest.approx([0.8, -0.8, 0.0, 1.0])
    assert [s.value for s in rewards(letters, accuracy=0.5)] == pytest.approx([1.42, -0.28, -0.5, 1.5])
    # in expectation at p = 0.7 a confidence of 0.7 beats 1: 1 - 2 0.21 = 0.58 against 0.7 - 0.3
    expected = lambda c: 0.7 * (1 - 2 * (1 - c) ** 2) + 0.3 * (1 - 2 * c**2)  # noqa: E731
    assert expected(0.7) == pytest.approx(0.58) and expected(1.0) == pytest.approx(0.4)


def test_only_the_confidence_is_learned_unless_all_is_asked_for(letters):
    context, groups = played(letters, with_confidence(), "a")
    groups[0].scores.update(asyncio.run(score(calibrated(), groups, context)))

    def learned(**args):
        (example,) = of("sayself", **args).stages[-1].credit[0](groups=groups)
        tree = groups[0].episodes[0].tree
        parts = [tree.id[tree.begin[s.source[1]] :][s.start : s.stop] for s in example.segments if s.learn]
        return "".join(letters.decode(ids) for ids in parts)

    assert learned() == " 8\n" and learned(masked=False) == "so<answer> 4</answer> or 7\n 8\n"


def test_an_answer_is_followed_by_a_reflection_and_a_confidence(letters):
    _, (group,) = played(letters, with_confidence(rationale=True), "a")
    assert full_text(group.episodes[0], letters) == "a so<answer> 4</answer>\nReflection: or 7\nConfidence: 8\n"
    assert group.episodes[0].answer == "4"
    _, (group,) = played(letters, with_confidence(rationale=False), "a")
    assert full_text(group.episodes[0], letters) == "a so<answer> 4</answer>\nConfidence: 8\n"


def test_a_demonstration_names_what_other_samples_say_and_how_many_say_the_same(letters):
    # Four samples, by their keys: whatever they are, the share of the chosen answer is said in tenths.
    answers = ("4", "7", "4", "9")
    order: list[int] = []

    def sampled(text: str, at: int) -> str:
        order.append(at)
        return f"<answer> {answers[len(order) - 1]}</answer>"

    _, (group,) = played(letters, own_reflection(samples=4, rationale=True), "b", sampled)
    text = full_text(group.episodes[0], letters)
    # 5 is right, nobody says it: the first, 4, which two of four say
    assert text == "b <answer> 4</answer>\nReflection: or 7 or 9\nConfidence: 5\n"
    order.clear()
    _, (group,) = played(letters, own_reflection(samples=2, rationale=False), "a", sampled)
    assert full_text(group.episodes[0], letters) == "a <answer> 4</answer>\nConfidence: 5\n"


def test_supervised_training_comes_first_and_is_where_the_penalty_starts():
    method = of("sayself", samples=3, sft_steps=4, sft_groups=5)
    first, second = method.stages
    assert (first.until, first.groups, second.enter) == (4, 5, {"ref": "policy"})
    assert len(of("sayself", sft_steps=0).stages) == 1
