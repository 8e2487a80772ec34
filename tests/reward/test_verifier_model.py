"""A model that verifies answers: it is asked about what a rule rejects, and errors of both are counted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from support.answers import Knows, answered_group, paid

from selfteach.core import Score
from selfteach.reward.answer import same_text
from selfteach.reward.verifier_model import by_verifier
from selfteach.tasks.demo_ways import names_answer

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


def test_the_modes(letters):
    values = lambda **how: [s.value for s in verified(letters, **how)[0]]  # noqa: E731
    assert values(weight=0.5) == [1.0, 0.5, 0.0, 0.5]
    assert values(mode="only") == [0.0, 1.0, 0.0, 1.0]
    assert values(mode="mixed", weight=0.25) == [0.75, 0.25, 0.0, 0.25]  # 0.25 v + 0.75 [the rule accepts]
    assert values(mode="only", soft=True) == pytest.approx([0.3, 0.9, 0.2, 0.6])
    assert values(soft=True) == pytest.approx([1.0, 0.9, 0.2, 0.6])


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
