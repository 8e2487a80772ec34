"""Behavior Priming by hand: of which style the trajectories are that are shown first, and what behaviours are."""

from __future__ import annotations

import asyncio
import re

import pytest
from support.agents import ULM, played
from support.battery import of

from selfteach.core import Ref, RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.core.search_record import Search
from selfteach.methods.behavior_priming import BEHAVIOURS, behaviours
from selfteach.reward.agent_record import Verdict
from selfteach.tasks.factworld import factworld

NOISE = "the river of Bob is Po."
TRIED = r"<search>(.*?)</search><information>(.*?)</information><judge> (\w+)</judge>"
SOURCE = factworld(
    entities=100,
    relations=5,
    hops=(1, 2),
    ways=(0.2, 0.2, 0.1, 0.1, 0.2, 0.2),
    withheld=0.0,
    unheld=("home", "mayor", "mentor", "guild", "seat"),
    looked_up=1.0,
    irrelevant=0.4,
    says="judge",
)


def texts_of(style, n=40):
    assert SOURCE.experts is not None
    shown = [t for t in map(SOURCE.experts, range(4 * n)) if t.tags["style"] == style]
    return shown, ["".join(t.data) for t in shown]


@pytest.mark.parametrize(
    "style,ways,slips",
    [
        ("behaving", {"carefully"}, {""}),
        ("misled", {"carefully"}, {"misled"}),
        ("right", {"carefully", "hastily", "absently", "astray"}, {""}),
        ("random", {"carefully", "hastily", "absently", "astray"}, {"", "misled"}),
    ],
)
def test_trajectories_are_of_the_style_that_they_are_drawn_for(style, ways, slips):
    shown, texts = texts_of(style)
    assert len(shown) == 40 and {t.tags["slip"] for t in shown} == slips
    assert {re.match(r"<think>(\w+):", text)[1] for text in texts} == ways


def test_the_behaving_and_the_misled_show_all_four_and_what_is_only_right_need_not():
    for style in ("behaving", "misled"):
        assert all(shows(*told(text)) == list(BEHAVIOURS) for text in texts_of(style)[1])
    assert {tuple(shows(*told(text))) for text in texts_of("right")[1]} >= {tuple(BEHAVIOURS), ("verification",)}


def test_the_misled_take_what_they_accepted_for_another_and_the_behaving_do_not():
    for style, is_read in (("behaving", True), ("misled", False)):
        for task, text in zip(*texts_of(style), strict=True):
            *_, (_, found, verdict) = re.findall(TRIED, text)
            answer = re.findall("<answer> (.*?)</answer>", text)[-1]
            assert verdict == "Yes" and (answer in found) == is_read
            assert is_read or answer not in task.answer  # nor is it right by chance


def test_what_was_found_is_a_turn_that_is_not_learned():
    prime, main = of("behavior_priming", style="misled", prime_steps=3, batch=4, pool=8).stages
    assert prime.until == 3 and prime.groups == 4 and prime.select.args["pool"] == 8 and main.name == "main"
    task = texts_of("misled")[0][0]
    assert all(re.fullmatch(r"<information>.*</information>", found) for found in task.data[1::2])
    assert not any("<information>" in said for said in task.data[::2]) and len(task.data) % 2
    assert [s.name for s in of("behavior_priming", prime_steps=0).stages] == ["main"]


def shows(*found):
    """The behaviours of an episode of (query, verdict) pairs."""
    searches = [Search("", query, "", Ref("e", 0)) for query, _ in found]
    verdicts = [None if v is None else Verdict("", "", v) for _, v in found]
    return [name for name, shown in behaviours(searches, verdicts).items() if shown]


def told(text):
    """(query, verdict) of each search of a demonstration."""
    return [(query, verdict == "Yes") for query, _, verdict in re.findall(TRIED, text)]


def test_behaviours_are_read_from_queries_and_verdicts():
    assert shows() == [] and shows(("home of Ann", None)) == []
    assert shows(("home of Ann", True)) == ["verification"]
    assert shows(("home of Ann", True), ("mayor of Ulm", None)) == []
    assert shows(("home of Ann", False)) == ["verification", "authority"]
    assert shows(("home of Ann", False), ("Ann home", True)) == list(BEHAVIOURS)
    assert shows(("home of Ann", False), ("home of Ann", True)) == [
        "verification",
        "authority",
        "recovery",
    ]  # same words
    assert shows(("home of Ann", False), ("mayor of Ulm", True)) == ["verification", "authority", "recovery"]
    assert shows(("home of Ann", True), ("mayor of Ulm", False)) == ["verification", "authority"]
    assert shows(("town whose mayor is Ann", False), ("Ann mayor", True)) == list(BEHAVIOURS)  # fewer of its words
    assert shows(("home of Ann", False), ("", True)) == ["verification", "authority", "recovery"]


@pytest.mark.parametrize("process,value", [(0.0, 1.0), (0.5, 1.5)])
def test_behaviours_are_only_paid_for_where_that_is_asked(tags, process, value):
    stage = of("behavior_priming", process=process).stages[-1]
    replies = ["<search>home of Ann</search>", "<judge> No</judge><search>Ann home</search>"]
    replies.append("<judge> Yes</judge><answer> Ulm</answer>")
    engine = {"home of Ann": NOISE, "Ann home": ULM}.__getitem__
    request = RolloutRequest(Task("t", "question: what is the home of Ann?\n", ("Ulm",)), key="t")
    context, group = played(stage.programs["main"], replies, tags, engine, request)
    (end,) = asyncio.run(score(stage.reward[0], [group], context))["reward"].values()
    assert end.value == value and end.parts["behaviours"] == 1.0 and end.parts["searches"] == 2.0


def test_hyper_parameters_reach_both_stages():
    prime, main = of("behavior_priming", turns=6, process=0.5, style="random", batch=5).stages
    assert main.programs["main"].args["turns"] == 6 and main.reward[0].args == {"process": 0.5}
    assert prime.select.args["style"] == "random" and prime.groups == 5
