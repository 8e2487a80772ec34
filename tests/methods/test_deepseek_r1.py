"""DeepSeek-R1 by hand: what is paid, which demonstrations and samples are imitated, and what each stage begins with."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.battery import of
from support.episodes import scripted_context, single_turn_group

from selfteach.core import RolloutRequest, Task
from selfteach.loop.episode import play
from selfteach.methods.deepseek_r1 import accepted, readable, right_and_readable
from selfteach.rollout.single import read
from selfteach.tasks.two_tongues import one_language

FIRST = Task("t", "add 2 3 =", ("5", "vijf"), judges={"language": one_language()})
OWN, OTHER = "<think> slowly 2 + 3 = 5.</think>", "<think> langzaam twee + drie = vijf.</think>"


def test_what_is_paid():
    pay = right_and_readable(language=0.5)
    found = [pay(text=text, answer=answer, task=FIRST) for text in (OWN, OTHER) for answer in ("5", "6")]
    assert [s.value for s in found] == [1.5, 0.5, 1.0, 0.0] and [s.parts["mixed"] for s in found] == [0, 0, 1, 1]
    plain = pay(text=OTHER, answer="5", task=Task("t", "add 2 3 =", ("5",)))
    assert plain.value == 1.5 and "mixed" not in plain.parts, "no judge tells languages apart"


def test_what_is_both_is_imitated():
    group = single_turn_group([(5,), (6,), (7,), (8,)], [2.0, 1.0, 0.0, 2.0])
    names = [e.name for e in accepted(groups=[group])]
    assert names == [f"{group.episodes[i].id}:{group.episodes[i].trajectories[0].leaf.node}" for i in (0, 3)]
    assert len(accepted(full=1.0)(groups=[group])) == 3, "of those that are right where no language is paid for"


def test_readable_demonstrations_are_imitated(tags: Any):
    shown = [Task(f"d{i}", FIRST.prompt, ("5",), (text,), judges=FIRST.judges) for i, text in enumerate((OWN, OTHER))]
    context = scripted_context(read(), [""], tags)
    groups = asyncio.run(play(context, [RolloutRequest(task, 1) for task in shown]))
    kept = readable(groups=groups, context=context)
    assert [e.name.partition(":")[0] for e in kept] == [groups[0].episodes[0].id]


def test_what_each_stage_begins_with():
    cold, reason, sft, last = of("deepseek_r1").stages
    assert [s.until for s in (cold, reason, sft, last)] == [10, 40, 20, None] and cold.data
    assert reason.enter == last.enter == {"ref": "policy"} and "ref" not in sft.enter
    # the base model, which no stage has touched, learns what the policy samples
    assert list(sft.enter.items()) == [("checkpoint", "policy"), ("policy", "base")]
    assert sft.programs["main"].args["model_role"] == "checkpoint"
    assert all(s.reset == ("policy",) for s in (reason, sft, last))
    assert of("deepseek_r1", language=0.0).stages[2].credit[0].args["full"] == 1.0
    assert of("deepseek_r1", style="slowly", batch=5).stages[0].select.args["style"] == "slowly"


@pytest.mark.parametrize(("left", "out"), [("cold", "cold_steps"), ("reason", "reason_steps"), ("sft", "sft_steps")])
def test_each_stage_can_be_left_out(left: str, out: str):
    names = [s.name for s in of("deepseek_r1", **{out: 0}).stages]
    assert names == [n for n in ("cold", "reason", "sft", "all") if n != left]


def test_zero_is_one_stage_for_being_right_alone():
    (stage,) = of("deepseek_r1_zero").stages
    assert stage.reward[0].args["language"] == 0.0
    assert stage.updates == of("grpo", beta=0.001).stage.updates
