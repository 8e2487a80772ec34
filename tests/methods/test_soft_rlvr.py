"""RLVR by a distilled verifier, by hand: its probability as the reward, and a teacher that errs."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from support.answers import answered_group, paid
from support.battery import of
from support.episodes import full_text, scripted_context

from selfteach.core import RolloutRequest, Task
from selfteach.credit import norm
from selfteach.loop.episode import play
from selfteach.reward.answer import exact_match
from selfteach.rollout.judgement import read_judgement

TASK = Task("t", "q? ", ("ulm",))


def rewards(tokenizer: Any, **how: Any) -> list[float]:
    """Of four answers that the verifier gives 0.9, 0.6, 0.4 and 0.4."""
    texts = [f"<answer> {a}</answer>" for a in "abcd"]
    says = {"a": 0.9, "b": 0.6, "c": 0.4, "d": 0.4}
    group, context, _ = answered_group(
        texts, "a", tokenizer, lambda text: [math.log(says[text.split("\n")[-2].strip()])]
    )
    part = of("soft_rlvr", **how).stages[-1].reward[0]
    return [float(s.value or 0.0) for s in paid(part, group, context=context)]


def test_the_probability_of_the_verdict_is_the_reward_and_is_normalised_within_the_prompt(letters):
    soft, hard = rewards(letters), rewards(letters, soft=False)
    assert soft == pytest.approx([0.9, 0.6, 0.4, 0.4]) and hard == [1.0, 1.0, 0.0, 0.0]
    # mean 0.575; deviations 0.325, 0.025, -0.175, -0.175; their squares sum to 0.1675, over 3: std 0.2363
    adv = norm(reward=np.array(soft), group=np.zeros(4, int))["adv"].values
    assert adv.tolist() == pytest.approx([1.3755, 0.1058, -0.7407, -0.7407], abs=1e-3)
    flat = norm(reward=np.array([0.4] * 4), group=np.zeros(4, int))["adv"].values
    assert flat.tolist() == [0.0] * 4
    credit = [c.name for c in of("soft_rlvr", zscore=False).stages[-1].credit]
    assert credit == ["per_trajectory", "center"]


def learned(
    tokenizer: Any, answer: str, noise: float = 0.0, n: int = 1, question: bool = False
) -> list[tuple[str, bool]]:
    """(what the verifier reads and learns, whether the verdict was turned) of n episodes."""
    program = read_judgement(judge=exact_match(), noise=noise, question=question)
    table = scripted_context(program, [], tokenizer, model_roles=("policy", "verifier"))
    (group,) = asyncio.run(play(table, [RolloutRequest(TASK, n, help={"answer": answer}, key="k")]))
    assert {e.why for e in group.episodes} == {""}
    out = []
    for e in group.episodes:
        (t,) = e.trajectories
        assert t.learn == "verifier"
        tree, at = e.tree, e.tree.places(t.leaf.node, t.leaf.offset)
        learned_ids = tree.id[at][tree.action_mask[at]]
        assert tokenizer.decode(learned_ids) == e.answer  # the verdict alone is learned
        out.append((full_text(e, tokenizer), bool(e.tree.notes[t.leaf.node]["flipped"])))
    return out


def test_the_verifier_learns_the_teachers_verdict_on_the_answer_alone(tags):
    assert learned(tags, "rome") == [("\n ulm\n rome\n 0", False)]
    assert learned(tags, "Ulm.", question=True) == [("q? \n ulm\n Ulm.\n 1", False)]


def test_a_teacher_is_right_unless_told_otherwise(tags):
    table = scripted_context(read_judgement(judge=exact_match()), [], tags, model_roles=("policy", "verifier"))
    for answer, verdict in (("ulm", "1"), ("rome", "0")):
        (group,) = asyncio.run(play(table, [RolloutRequest(TASK, 4, help={"answer": answer}, key=answer)]))
        assert {e.answer for e in group.episodes} == {verdict}


def test_a_share_of_the_teachers_verdicts_is_wrong(tags):
    found = learned(tags, "rome", 0.25, 200)
    turned = [text for text, flipped in found if flipped]
    assert 30 <= len(turned) <= 70 and set(turned) == {"\n ulm\n rome\n 1"}
    assert {text for text, flipped in found if not flipped} == {"\n ulm\n rome\n 0"}
    first = of("soft_rlvr", teacher_noise=0.3).stages[0]
    assert first.programs["main"].args["noise"] == 0.3 and first.select.args["rule"] is None
