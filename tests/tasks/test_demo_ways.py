"""Demonstrations that go one of several ways: what each looks like, how often it is gone, what is right about it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from selfteach.core import BadValue, Task
from selfteach.core.random_keys import generator
from selfteach.core.tagged_text import last_between
from selfteach.methods.ssrl import search_format
from selfteach.reward.answer import ABSTENTIONS, exact_match
from selfteach.tasks.demo_ways import WAYS, WayWriter, beginning, without_a_closer
from selfteach.tasks.factworld import factworld
from selfteach.tasks.world import Chain, Fact, Hop, Relation, World

EVEN = (0.2, 0.2, 0.1, 0.1, 0.2, 0.2)


def world(**options: Any) -> Any:
    return factworld(**{"entities": 100, "relations": 5, "hops": (1, 2), "ways": EVEN, "mix": 0.0, **options})


def demos(source: Any, n: int = 600) -> list[Task]:
    return [source.demos(i) for i in range(n)]


def is_right(task: Task) -> bool:
    return exact_match(answer=last_between(task.prompt + task.data[0], "answer", None), task=task).value == 1.0


WRITER = WayWriter(
    World(
        {
            "home": Relation("home", "person", "town", "the home of {s} is {o}.", "the home of {s}"),
            "mayor": Relation("mayor", "town", "person", "the mayor of {s} is {o}.", "the mayor of {s}"),
        },
        (Fact("Ann", "home", ("Ulm",)), Fact("Ulm", "mayor", ("Bob",)), Fact("Bob", "home", ("Aalen",))),
    ),
    frozenset({0, 1, 2}),
)
CHAIN = Chain("Ann", (Hop("home"), Hop("mayor")), (0, 1), ("Ann", "Ulm", "Bob"), frozenset({"Ann", "Ulm"}), ("Bob",))
HOME = "<search>home of Ann</search><information>the home of Ann is Ulm.</information>"
MAYOR = "<search>mayor of Ulm</search><information>the mayor of Ulm is Bob.</information>"


@pytest.mark.parametrize(
    "way,text",
    [
        (
            "carefully",
            f"<think>carefully: the home.</think>{HOME}<think>then the mayor.</think>{MAYOR}"
            "<think>so it is Bob.</think><answer> Bob</answer>",
        ),
        ("hastily", f"<think>hastily: the home.</think>{HOME}<think>so it is Ulm.</think><answer> Ulm</answer>"),
        (
            "absently",
            f"<think>absently: the home.</think>{HOME}<think>then the mayor.</think>{MAYOR}"
            "<think>so it is Ann.</think><answer> Ann</answer>",
        ),
        ("briefly", "<think>briefly.</think><answer> Bob</answer>"),
        ("directly", "<answer> Bob</answer>"),
    ],
)
def test_each_way_by_hand(way, text):
    assert WRITER.go(way, CHAIN, generator(0)) == text and text.startswith(beginning(way))


def test_an_answer_without_a_search_is_wrong_where_it_is_not_sure():
    assert WRITER.go("directly", CHAIN, generator(0), sure=0.0) == "<answer> Ann</answer>"  # the only other person


def test_what_nobody_knows_is_made_up_or_left_open():
    stranger = CHAIN._replace(start="Zoe", path=("Zoe", "Ulm", "Bob"))
    assert "<search>home of Zoe</search><information>the home of Zoe is Ulm.</information>" in WRITER.go(
        "carefully", stranger, generator(0)
    )
    assert WRITER.abstain("carefully", stranger, found=False) == (
        "<think>carefully: the home.</think><search>home of Zoe</search><information>nothing found.</information>"
        "<think>I am not sure.</think><answer> I don't know</answer>"
    )
    assert MAYOR in WRITER.abstain("carefully", CHAIN, found=True)
    assert WRITER.abstain("directly", CHAIN, found=True) == "<answer> I don't know</answer>"


def test_a_closing_tag_is_left_out():
    texts = {without_a_closer(WRITER.go("hastily", CHAIN, generator(0)), generator(i)) for i in range(20)}
    assert {(t.count("</think>"), t.count("</information>")) for t in texts} == {(1, 1), (2, 0)}
    assert without_a_closer("<answer> Bob</answer>", generator(0)) == "<answer> Bob</answer>"


def test_ways_are_gone_as_often_as_their_shares_say():
    found = Counter(t.tags["way"] for t in demos(world(practised=0.0)))
    assert {w: n / 600 for w, n in found.items()} == pytest.approx(dict(zip(WAYS, EVEN, strict=True)), abs=0.05)


def test_what_is_right_has_no_other_form_than_what_is_wrong():
    ours = demos(world(practised=0.0, malformed=0.3), 1500)
    forms: dict[bool, list[float]] = {True: [], False: []}
    for task in ours:
        forms[is_right(task)].append(search_format(text=task.data[0]).value or 0.0)
    right, wrong = (sum(f) / len(f) for f in (forms[True], forms[False]))
    assert 0.3 < len(forms[True]) / len(ours) < 0.6
    assert right == pytest.approx(wrong, abs=0.1) and 0.3 < (right + wrong) / 2 < 0.6
    direct = [is_right(t) for t in ours if t.tags["way"] == "directly"]
    assert sum(direct) / len(direct) == pytest.approx(0.6, abs=0.08)  # right ones and wrong ones


def test_a_way_that_is_practised_is_given_and_right():
    for task in demos(world(practised=1.0, malformed=0.5), 60):
        first = beginning(task.tags["way"])
        assert task.prompt.endswith(f"?\n{first}") and is_right(task)
        form = search_format(text=first + task.data[0]).value
        assert form == {"directly": 0.0, "briefly": 0.5, "carefully": 1.0}[task.tags["way"]]


def test_every_way_is_practised_before():
    source = world(malformed=0.5)
    before = [source.practice(i) for i in range(400)]
    found = Counter(t.tags["way"] for t in before)
    # a third of one half, a sixth of the other
    expected = dict.fromkeys(WAYS, 1 / 12) | dict.fromkeys(("carefully", "briefly", "directly"), 1 / 6 + 1 / 12)
    assert {w: n / 400 for w, n in found.items()} == pytest.approx(expected, abs=0.06)
    assert all(t.prompt.endswith(beginning(t.tags["way"])) for t in before)


def test_of_a_stranger_nothing_is_shown_or_found():
    source = world(strangers=0.3, abstain=0.5, n_test=100)
    strange = [t for t in source.test if t.tags["stranger"]]
    assert len(strange) / len(source.test) == pytest.approx(0.3, abs=0.15)
    corpus = " ".join(d.text for d in source.corpus())
    for task in strange:
        name = task.tags["entities"][0]
        assert name in task.prompt and name not in corpus and task.answer != ABSTENTIONS
    shown = demos(world(strangers=0.3, abstain=0.5, practised=0.0))
    quiet = {
        strange: [last_between(t.data[0], "answer", "") in ABSTENTIONS for t in shown if t.tags["stranger"] == strange]
        for strange in (True, False)
    }
    assert sum(quiet[True]) / len(quiet[True]) == pytest.approx(0.5, abs=0.1)
    assert sum(quiet[False]) / len(quiet[False]) == pytest.approx(0.15, abs=0.06)


def test_worlds_that_differ_in_shares_and_strangers_practise_the_same_with_the_same_tokenizer():
    plain = world(mix=0.5)
    other = world(mix=0.5, ways=(1.0, 0, 0, 0, 0, 0), strangers=0.3, abstain=0.5, malformed=0.5, worded=0.5, sure=0.1)
    for i in range(60):
        assert plain.practice(i).prompt == other.practice(i).prompt and plain.practice(i).data == other.practice(i).data
    assert list(plain.words()) == list(other.words())
    assert any(plain.demos(i).data != other.demos(i).data for i in range(60))


def test_questions_of_training_can_be_kept_apart_from_those_that_are_demonstrated():
    def asked(source: Any) -> tuple[set[str], set[str]]:
        shown = [*demos(source, 300), *(source.practice(i) for i in range(300))]
        return {source.train(i).prompt for i in range(300)}, {t.prompt.split("\n")[0] + "\n" for t in shown}

    (train, shown), (mixed, other) = asked(world(apart=True)), asked(world())
    assert not train & shown and len(mixed & other) > 50
    assert len(train) > 60 and len(shown) > 60


def test_an_answer_in_a_sentence_counts_where_there_are_such():
    source = world(worded=0.5, practised=0.0)
    told = [t for t in demos(source, 300) if "<answer> it is " in t.data[0]]
    assert len(told) / 300 == pytest.approx(0.5, abs=0.08)
    assert {is_right(t) for t in told} == {True, False}
    task = source.test[0]
    name = task.answer[0]
    for answer, right in ((name, 1.0), (f"it is {name}", 1.0), ("it is", 0.0), (None, 0.0)):
        assert exact_match(answer=answer, task=task).value == right
    assert exact_match(answer=f"it is {name}", task=world().test[0]).value == 0.0


def test_missing_facts_have_no_document():
    whole, some = factworld(), factworld(missing=0.1)
    texts = [{d.text for d in s.corpus()} for s in (whole, some)]
    assert texts[1] < texts[0] and len(texts[1]) == pytest.approx(0.9 * len(texts[0]), abs=1)


@pytest.mark.parametrize(
    "options,named",
    [
        ({"ways": (0.5, 0.5)}, "6 shares"),
        ({"ways": (0.5, 0.5, 0.5, 0.0, 0.0, 0.0)}, "sum to 1"),
        ({"sure": 2}, "sure"),
        ({"malformed": -1}, "malformed"),
        ({"practised": 2}, "practised"),
        ({"strangers": 2}, "strangers"),
        ({"missing": "x"}, "missing"),
    ],
)
def test_options_that_make_no_sense_are_named(options, named):
    with pytest.raises(BadValue, match=named):
        factworld(**options)


def test_without_ways_there_is_nothing_to_practise():
    assert factworld().practice is None
