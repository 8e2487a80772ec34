"""TinyV by hand: what its verifier learns from, and the method after that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.battery import of

from selfteach.core import BadValue, Block, Task
from selfteach.curriculum.select import demonstrated_answers
from selfteach.reward.answer import exact_match, same_text
from selfteach.tasks.demo_ways import names_answer
from selfteach.tasks.factworld import factworld


def read_by_the_verifier(*demos: str, n: int, rule: Block | None = None, written: bool = True) -> list[str]:
    """The answers that it learns from, of demonstrations of three questions in turn."""
    golds = ("ulm", "rome", "oslo")
    items = [
        Task(str(i), "q", (golds[i % 3],), data=(f"<answer> {a}</answer>",), verifier=names_answer())
        for i, a in enumerate(demos)
    ]
    source = replace(factworld(entities=60), demos=lambda i: items[i % len(items)])
    asked, _ = demonstrated_answers(
        n=n, finished_rounds=[], source=source, state=0, judge=exact_match(), rule=rule, written=written
    )
    return [r.help["answer"] for r in asked]


def test_the_verifier_learns_from_what_the_rule_rejects_and_from_what_is_written_beside_it():
    # ulm: right, and read by the rule. it is rome: right, rejected. bonn to oslo: wrong; beside it, as rome was said,
    # it is oslo. it is ulm: right; beside it, with the reference of the last right one, it is rome.
    demos = ("ulm", "it is rome", "bonn", "it is ulm")
    assert read_by_the_verifier(*demos, n=5, rule=same_text()) == [
        "it is rome",
        "bonn",
        "it is oslo",
        "it is ulm",
        "it is rome",
    ]
    assert read_by_the_verifier(*demos, n=3, rule=same_text(), written=False) == ["it is rome", "bonn", "it is ulm"]
    # without the rule what it accepts is learned too: rome beside ulm's words, and the other way round
    assert read_by_the_verifier(*demos, n=5) == ["ulm", "it is rome", "it is ulm", "bonn", "it is oslo"]


def test_it_is_grpo_after_the_verifier_learned():
    method, base = of("tinyv", beta=0.1), of("grpo", beta=0.1)
    first, second = method.stages
    assert (second.credit, second.updates) == (base.stage.credit, base.stage.updates)
    assert first.updates[0].params == ("verifier",) and first.groups == 32 * 500
    assert first.programs["main"].args["noise"] == 0.0 and "verifier" in method.models


def test_without_wrong_answers_there_is_nothing_to_learn_verifying_from():
    task = Task("t", "q", ("7",), data=("<answer> 7</answer>",))
    source = replace(factworld(entities=60), demos=lambda i: task)
    with pytest.raises(BadValue, match="only 0 give an answer to learn verifying from"):
        demonstrated_answers(n=2, finished_rounds=[], source=source, state=0, judge=exact_match(), rule=same_text())
