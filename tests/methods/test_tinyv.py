"""TinyV by hand: a verifier is asked about what a rule rejects, and errors of both are counted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from support.answers import Knows, answered_group, paid
from support.battery import of

from selfteach.core import BadValue, Score, Task
from selfteach.curriculum.select import demonstrated_answers
from selfteach.reward.answer import exact_match, same_text
from selfteach.reward.verifier_model import by_verifier
from selfteach.tasks.demo_ways import names_answer
from selfteach.tasks.factworld import factworld

# what the verifier gives each answer: it knows the sentence, doubts the name alone, and is fooled by one wrong name
SAYS = {"ulm": 0.3, "it is ulm": 0.9, "it is bonn": 0.2, "it is rome": 0.6}


def verified(tokenizer: Any, **how: Any) -> tuple[list[Score], Knows]:
    def say(context: str) -> list[float]:
        return [math.log(SAYS[context.split("\n")[-2].strip()])]  # of one token, the verdict 1

    texts = [f"<answer> {a}</answer>" for a in SAYS]
    group, context, engine = answered_group(texts, "ulm", tokenizer, say)
    task = replace(group.request.task, verifier=names_answer())
    group = group._replace(request=replace(group.request, task=task))
    return paid(by_verifier(rule=same_text(), **how), group, context=context), engine


def test_only_what_the_rule_rejects_is_asked_about(letters):
    # the rule accepts the name alone; of the others the verifier accepts 0.9 and 0.6
    found, engine = verified(letters)
    assert [s.value for s in found] == [1.0, 1.0, 0.0, 1.0]
    assert [s.parts["asked"] for s in found] == [0.0, 1.0, 1.0, 1.0]
    read = [context for context, _ in engine.asked]
    assert len(read) == 3 and "\n ulm\n it is bonn\n " in read and all(t == "1" for _, t in engine.asked)
    assert "q?\n ulm\n it is bonn\n " in [context for context, _ in verified(letters, question=True)[1].asked]


@pytest.mark.parametrize(
    "how,values",
    [
        ({"weight": 0.5}, [1.0, 0.5, 0.0, 0.5]),
        ({"mode": "only"}, [0.0, 1.0, 0.0, 1.0]),
        ({"mode": "mixed", "weight": 0.25}, [0.75, 0.25, 0.0, 0.25]),  # 0.25 v + 0.75 [the rule accepts]
        ({"mode": "only", "soft": True}, [0.3, 0.9, 0.2, 0.6]),
        ({"soft": True}, [1.0, 0.9, 0.2, 0.6]),
    ],
)
def test_the_modes(letters, how, values):
    assert [s.value for s in verified(letters, **how)[0]] == pytest.approx(values)


def test_who_errs_is_counted_among_those_it_is_a_rate_of(letters):
    found = verified(letters)[0]
    assert [s.parts.get("rule_misses") for s in found] == [0.0, 1.0, None, None]  # of right answers
    assert [s.parts.get("verifier_misses") for s in found] == [
        None,
        0.0,
        None,
        None,
    ]  # of those that it was asked about
    assert [s.parts.get("verifier_fooled") for s in found] == [None, None, 0.0, 1.0]
    assert [s.parts["fooled"] for s in found] == [0.0, 0.0, 0.0, 1.0]
    alone = verified(letters, mode="only")[0]
    assert [s.parts["missed"] for s in alone] == [1.0, 0.0, 0.0, 0.0]
    assert alone[0].parts["verifier_misses"] == 1.0


def test_no_answer_is_not_asked_about_and_wrong(letters):
    group, context, engine = answered_group(["<answer> ulm</answer>"], "ulm", letters, lambda text: [0.0])
    group.episodes[0].answer = None
    (found,) = paid(by_verifier(rule=same_text()), group, context=context)
    assert found.value == 0.0 and engine.asked == []
    (refused,) = paid(by_verifier(), group, context=context)
    assert refused.value is None and "rule=" in str(refused.error)


def read_by_the_verifier(*demos: str, **how: Any) -> list[str]:
    """The answers that it learns from, of demonstrations of three questions in turn."""
    golds = ("ulm", "rome", "oslo")
    items = [
        Task(str(i), "q", (golds[i % 3],), data=(f"<answer> {a}</answer>",), verifier=names_answer())
        for i, a in enumerate(demos)
    ]
    source = replace(factworld(entities=60), demos=lambda i: items[i % len(items)])
    asked, _ = demonstrated_answers(finished_rounds=[], source=source, state=0, judge=exact_match(), **how)
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
