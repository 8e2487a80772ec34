"""TinyV by hand: what its verifier learns from, and the method after that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.battery import of

from selfteach.core import BadValue, Block, Task
from selfteach.curriculum.select import demonstrated_answers
from selfteach.reward.answer import exact_match, same_text
from selfteach.tasks.factworld import factworld
from selfteach.tasks.free_form import same_name


def read_by_the_verifier(
    *demos: str, n: int, rule: Block | None = None, written: bool = True, form: str = ""
) -> list[str]:
    """The answers that it learns from, of demonstrations of three questions in turn, beside two of training."""

    def asked(i: int, golds: Sequence[str], *data: str) -> Task:
        return Task(f"{golds[0]}{i}", "q", (form + golds[i % len(golds)],), data=data, verifier=same_name())

    items = [asked(i, ("ulm", "rome", "oslo"), f"<answer> {a}</answer>") for i, a in enumerate(demos)]
    source = replace(
        factworld(entities=60), demos=lambda i: items[i % len(items)], train=lambda i: asked(i, ("bern", "kiel"))
    )
    found, _ = demonstrated_answers(
        n=n, finished_rounds=[], source=source, state=0, judge=exact_match(), rule=rule, written=written
    )
    return [r.help["answer"] for r in found]


def test_the_verifier_learns_from_what_the_rule_rejects_and_from_what_is_written_beside_it():
    # ulm: right, and read by the rule. it is rome: right, rejected. bonn to oslo: wrong; beside it, as rome was said,
    # it is oslo. it is ulm: right; beside it what was right for rome. To questions of training, which nobody answered:
    # bern as rome was said; kiel, and what was written for bern
    demos = ("ulm", "it is rome", "bonn", "it is ulm")
    assert read_by_the_verifier(*demos, n=8, rule=same_text()) == [
        *("it is rome", "bonn", "it is oslo", "it is bern"),
        *("it is ulm", "it is rome", "it is kiel", "it is bern"),
    ]
    assert read_by_the_verifier(*demos, n=3, rule=same_text(), written=False) == ["it is rome", "bonn", "it is ulm"]
    # without the rule what it accepts is learned too: ulm, and beside it is rome, and for kiel, the plain name
    assert read_by_the_verifier(*demos, n=4) == ["ulm", "it is rome", "ulm", "kiel"]


def test_a_reference_in_other_words_is_said_without_them():
    answers = read_by_the_verifier("ulm", "bonn", n=4, rule=same_text(), form="it is ")
    assert answers == ["ulm", "bonn", "rome", "kiel"]  # the references: it is ulm, it is rome, and it is kiel


def test_it_is_grpo_after_the_verifier_learned():
    method, base = of("tinyv", beta=0.1), of("grpo", beta=0.1)
    first, second = method.stages
    assert (second.credit, second.updates) == (base.stage.credit, base.stage.updates)
    assert first.updates[0].params == ("verifier",) and first.groups == 32 * 1500
    assert first.programs["main"].args["noise"] == 0.0 and "verifier" in method.models


def test_without_wrong_answers_there_is_nothing_to_learn_verifying_from():
    task = Task("t", "q", ("7",), data=("<answer> 7</answer>",))
    source = replace(factworld(entities=60), demos=lambda i: task)
    with pytest.raises(BadValue, match="only 0 give an answer to learn verifying from"):
        demonstrated_answers(n=2, finished_rounds=[], source=source, state=0, judge=exact_match(), rule=same_text())
