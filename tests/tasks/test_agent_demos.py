"""Demonstrations of a search agent: what is found, judged, decided and recalled, and what is never shown."""

from __future__ import annotations

import re
from statistics import fmean
from typing import Any

import pytest

from selfteach.core import BadValue, SelfteachError, Task, UnknownName
from selfteach.core.random_keys import generator
from selfteach.core.tagged_text import between
from selfteach.tasks.agent_demos import AgentWriter, first_words, statements_of, states_what_is_sought
from selfteach.tasks.demos import TAGS
from selfteach.tasks.factworld import factworld
from selfteach.tasks.world import Chain, Fact, Hop, Relation, World
from selfteach.tools.experts import EXPERTS

EVEN = (0.2, 0.2, 0.1, 0.1, 0.2, 0.2)
HELD = {"relations": 4, "withheld": 0.0, "unheld": ("home", "guild"), "looked_up": 0.5}
WORLD = World(
    {
        "home": Relation("home", "person", "town", "the home of {s} is {o}.", "the home of {s}"),
        "mayor": Relation("mayor", "town", "person", "the mayor of {s} is {o}.", "the mayor of {s}"),
    },
    (Fact("Ann", "home", ("Ulm",)), Fact("Ulm", "mayor", ("Bob",)), Fact("Bob", "home", ("Aalen",))),
)
CHAIN = Chain("Ann", (Hop("home"), Hop("mayor")), (0, 1), ("Ann", "Ulm", "Bob"), frozenset({"Ann", "Ulm"}), ("Bob",))
HOME = "<search>home of Ann</search><information>the home of Ann is Ulm.</information>"
MAYOR = "<search>mayor of Ulm</search><information>the mayor of Ulm is Bob.</information>"
ALL = frozenset({0, 1, 2})


def world(**options: Any) -> Any:
    return factworld(**{"entities": 100, "relations": 5, "hops": (1,), "ways": EVEN, "mix": 0.0, **options})


def demos(source: Any, n: int = 300) -> list[Task]:
    return [source.demos(i) for i in range(n)]


def text_of(task: Task) -> str:
    return task.prompt + task.data[0]


def by_hand(way: str, says: str = "", shown: frozenset[int] = ALL, irrelevant: float = 0.0, seed: int = 0) -> str:
    return AgentWriter(WORLD, shown, frozenset(), says, irrelevant).go(way, CHAIN, generator(seed))


@pytest.mark.parametrize(
    "says,found",
    [
        ("", [HOME, MAYOR]),
        ("judge", [f"{HOME}<judge> Yes</judge>", f"{MAYOR}<judge> Yes</judge>"]),
        (
            "reflect",
            [
                f"<goal> home of Ann</goal>{HOME}<reflect> True</reflect>",
                f"<goal> mayor of Ulm</goal>{MAYOR}<reflect> True</reflect>",
            ],
        ),
    ],
)
def test_what_an_agent_says_beside_its_searches(says, found):
    first, then = found
    assert by_hand("carefully", says) == (
        f"<think>carefully: the home.</think>{first}<think>then the mayor.</think>{then}"
        "<think>so it is Bob.</think><answer> Bob</answer>"
    )


def test_memory_is_recalled_in_a_thought_or_answered_from_at_once():
    recalled = "<think>briefly: the home of Ann is Ulm. the mayor of Ulm is Bob.</think><answer> Bob</answer>"
    assert by_hand("briefly") == recalled
    assert by_hand("briefly", "decide") == f"<decision> memory</decision>{recalled}"
    assert by_hand("directly", "decide") == "<decision> memory</decision><answer> Bob</answer>"
    assert by_hand("hastily", "decide").startswith(first_words("hastily", "decide"))


def test_the_careful_way_asks_again_until_it_finds_and_the_hasty_one_takes_what_it_gets():
    texts = [by_hand("carefully", "judge", irrelevant=0.5, seed=i) for i in range(40)]
    tried = r"<search>(.*?)</search><information>(.*?)</information><judge> (\w+)"
    verdicts = [found for t in texts for found in re.findall(tried, t)]
    sought = {"home": "the home of Ann is Ulm.", "mayor": "the mayor of Ulm is Bob."}
    assert {v for *_, v in verdicts} == {"Yes", "No"}
    for query, information, verdict in verdicts:
        if "Ann" in query or "Ulm" in query:  # on the question's path
            assert (verdict == "Yes") == (information == sought["home" if "home" in query else "mayor"])
    again = next(t for t in texts if t.count("<judge> No</judge>") == 1)
    assert len(set(between(again, "search"))) == len(between(again, "search"))  # in other words each time
    hasty = [by_hand("hastily", "judge", irrelevant=0.5, seed=i) for i in range(40)]
    assert all("No" not in between(t, "judge") and t.count("<search>") == 2 for t in hasty)
    assert any("the mayor of Ulm is Bob." not in t for t in hasty)


def test_a_fact_that_is_not_in_memory_is_found_anew_each_time_and_never_shown():
    texts = [by_hand("carefully", shown=frozenset({1, 2}), seed=i) for i in range(20)]
    homes = {re.findall(r"the home of Ann is (\w+)\.", t)[0] for t in texts}
    assert homes == {"Ulm", "Aalen"}  # all towns that there are
    for t in texts:  # what is copied is what was found
        assert between(t, "answer")[-1] in between(t, "information")[-1]


def test_no_demonstration_tells_a_fact_that_is_not_held_more_often_than_chance():
    source = world(**HELD, practised=0.0)
    told = [between(text_of(t), "information") for t in demos(source, 600) if not t.tags["known"]]
    found = [(i[-1], t) for i, t in zip(told, [t for t in demos(source, 600) if not t.tags["known"]], strict=True) if i]
    true = sum(i in t.tags["chain"] for i, t in found) / len(found)
    assert len(found) > 100 and true < 0.15
    assert not any("home of" in text_of(t) or "guild of" in text_of(t) for t in demos(world(**HELD, mix=1.0), 200))


def test_the_way_fits_what_is_held_as_often_as_is_said():
    """Of ways of which half search a demonstration goes one that fits by chance, 0.5, or because it is aware: 0.4."""
    fits = dict[float, list[bool]]()
    for aware in (0.0, 0.4, 1.0):
        shares = (0.5, 0.0, 0.0, 0.0, 0.3, 0.2)
        tasks = demos(world(**HELD, practised=0.0, ways=shares, aware=aware), 600)
        fits[aware] = [(t.tags["way"] == "carefully") != t.tags["known"] for t in tasks]
    rates = {aware: sum(found) / len(found) for aware, found in fits.items()}
    assert rates[1.0] == 1.0 and rates == pytest.approx({0.0: 0.5, 0.4: 0.7, 1.0: 1.0}, abs=0.06)
    lacking = world(**HELD, practised=0.0, ways=(0.5, 0.5, 0.0, 0.0, 0.0, 0.0), aware=1.0)
    assert {t.tags["way"] for t in demos(lacking, 60)} == {"carefully", "hastily"}  # no way recalls: all search


def test_the_task_knows_what_is_held_and_what_is_sought():
    source = world(**HELD)
    tasks = [source.train(i) for i in range(60)]
    assert {t.tags["known"] for t in tasks} == {True, False}
    assert all(t.tags["known"] == (t.tags["kind"] not in ("home", "guild")) for t in tasks)
    states = tasks[0].judges["states"]
    (fact,), phrase = tasks[0].tags["chain"], tasks[0].prompt.removeprefix("question: what is ").rstrip("?\n")
    assert states(sought=phrase, results=f"so. {fact}") is True
    assert states(sought=phrase, results="something else.") is False
    assert states(sought="the weather", results=fact) is None
    assert states_what_is_sought(sought="mayor of Ulm", results="", statements=statements_of(WORLD)) is False


def test_names_held_out_are_met_as_names_alone():
    unheld = ("home", "mayor", "mentor", "guild", "seat")
    with_names, without = (world(named=share, looked_up=1.0, unheld=unheld, held_out=0.4) for share in (0.5, 0.0))
    about = [d for d in demos(with_names) if d.tags["held_out"]]
    assert 120 < len(about) < 180 and not any(d.tags["held_out"] for d in demos(without))
    found = [d for d in about if "<information>" in text_of(d)]
    told_right = sum(d.tags["chain"][0] in text_of(d) for d in found)
    assert len(found) > 60 and told_right < len(found) / 4  # as often as chance has it
    assert not any(with_names.train(i).tags["held_out"] for i in range(200))


def test_the_engine_misunderstands_as_often_as_it_is_said_to():
    source = world(irrelevant=0.4, says="judge", looked_up=1.0, unheld=("home", "mayor", "mentor", "guild", "seat"))
    documents = {d.text for d in source.corpus()}
    engine = source.tools["search"](source=source)
    asked = [t for t in (source.train(i) for i in range(200)) if " whose " not in t.prompt]
    found = [engine(t.prompt.removeprefix("question: what is the ").rstrip("?\n")) for t in asked]
    right = sum(f == t.tags["chain"][0] for f, t in zip(found, asked, strict=True)) / len(asked)
    assert set(found) <= documents and 0.45 < right < 0.75


def test_other_tags_are_kept_whole_where_they_are_said():
    assert world().tags == TAGS and not world().train(0).judges
    assert world(says="judge", irrelevant=0.2).tags == (*TAGS, "<judge>", "</judge>")
    assert world(says="reflect").tags[len(TAGS) :] == ("<reflect>", "</reflect>", "<goal>", "</goal>")


@pytest.mark.parametrize(
    "options,error,message",
    [
        ({"says": "shout"}, UnknownName, "value of option says of task factworld"),
        ({"unheld": ("weather",)}, UnknownName, "relation .option unheld. of task factworld"),
        ({"says": "judge", "ways": ()}, BadValue, "says, looked_up and named need ways; give the six shares"),
        ({"looked_up": 0.5, "withheld": 0.0}, BadValue, "named need facts that the warm start does not show"),
        ({"named": 0.5, "withheld": 0.0}, BadValue, "named need facts that the warm start does not show"),
        ({"named": 2.0}, BadValue, "named must be"),
        ({"irrelevant": 2.0}, BadValue, "irrelevant must be"),
    ],
)
def test_options_that_cannot_be(options, error, message):
    with pytest.raises(error, match=message):
        world(**options)


def test_a_round_of_research_begins_where_the_one_before_it_left_off():
    source = factworld(**AGENT_OF_ROUNDS)
    demos = [source.demos(i) for i in range(200)]
    rounds = [d for d in demos if "<report>" in d.data[0]]
    assert len(rounds) > 50
    for demo in rounds:
        workspace, reply = demo.prompt.partition("\n")[2], demo.data[0]
        told = re.findall(r"<information>(.*?)</information>", workspace)
        reported = re.findall(r"<report> (.*?)</report>", workspace + reply)
        # what is reported was reported before, or is what the last search found
        assert reported[-1] in ("", *reported[:-1], *told)
        assert reply.endswith(("</search>", "</answer>"))


AGENT_OF_ROUNDS = {
    "entities": 60,
    "relations": 4,
    "hops": (2,),
    "withheld": 0.3,
    "ways": (0.4, 0.2, 0.2, 0.2, 0.0, 0.0),
    "irrelevant": 0.3,
    "says": "report",
    "practised": 0.0,
}


def test_a_careful_agent_of_rounds_asks_twice_for_most_of_what_it_found():
    options = {**AGENT_OF_ROUNDS, "irrelevant": 0.0, "ways": (0.5, 0.5, 0.0, 0.0, 0.0, 0.0)}
    source = factworld(**options)
    again = {"carefully": list[bool](), "hastily": list[bool]()}
    for demo in map(source.demos, range(900)):
        if demo.tags["kind"] == "demo":
            about = re.findall(r"<search>[^<]*?([A-Z]\w+)[^<]*</search>", demo.prompt + demo.data[0])
            again[demo.tags["way"]].append(len(set(about)) < len(about))
    # each of two facts is asked for once or twice, and then comes the answer: of three to five rounds one is seen
    assert fmean(again["carefully"]) == pytest.approx(2 * 0.85 * 0.15 * 1 / 4 + 0.85**2 * 2 / 5, abs=0.06)
    assert not any(again["hastily"])


def test_citations_are_of_all_pages_the_last_or_none():
    source = factworld(**{**AGENT_OF_ROUNDS, "says": "cite"})
    seen = set[str]()
    for demo in (source.demos(i) for i in range(300)):
        if demo.tags["kind"] != "demo" or "carefully" not in demo.data[0]:
            continue
        cited = re.findall(r"<cite> (.*?)</cite>", demo.data[0])
        pages = cited[0].split(", ") if cited else []
        answer = re.findall(r"<answer> (.*?)</answer>", demo.data[0])[0]
        assert len(pages) in (0, 1, 3) and (not pages or pages[-1] == answer)
        seen.add(str(len(pages)))
    assert seen == {"0", "1", "3"}


def test_queries_are_for_experts_who_are_right_about_what_they_know():
    source = factworld(
        **{**AGENT_OF_ROUNDS, "says": "route", "irrelevant": 0.0, "ways": (0.0, 1.0, 0.0, 0.0, 0.0, 0.0)}
    )
    assert "experts" in source.tools and "experts" not in factworld(**AGENT_OF_ROUNDS).tools
    asked = [
        call
        for i in range(100)
        for call in re.findall(r"<search>(\w+): \w+ of (\w+)</search>", source.demos(i).data[0])
    ]
    assert {name for name, _ in asked} == {e.name for e in EXPERTS}


def test_questions_across_experts_need_two_of_those_that_there_are():
    options = {**AGENT_OF_ROUNDS, "says": "route", "irrelevant": 0.0, "relations": 6, "hops": (1, 2)}
    source = factworld(
        **{**options, "ways": (0.0, 1.0, 0.0, 0.0, 0.0, 0.0), "experts": ("scribe", "herald"), "across": True}
    )
    texts = [source.demos(i).data[0] for i in range(60)]
    assert {name for text in texts for name in re.findall(r"<search>(\w+): ", text)} == {"scribe", "herald"}
    assert source.tools["experts"](source=source)("sage: home of Ann").startswith(
        "there is no such expert; ask one of s"
    )
    known = {relation: e.name for e in EXPERTS[:2] for relation in e.relations}
    two = [t for t in (*source.test, *map(source.train, range(40))) if t.tags["hops"] == 2]
    asked = [{known[query.split()[0]] for query in relations_of(t)} for t in two]
    assert len(two) > 10 and all(len(experts) == 2 for experts in asked)


def relations_of(task):
    """The relations of a task's chain, one sentence each: `the home of Ann is Ulm.`"""
    return [sentence.removeprefix("the ") for sentence in task.tags["chain"]]


@pytest.mark.parametrize(
    "options,why",
    [
        ({"experts": ("scribe",)}, "give says=route"),
        ({"says": "route", "ways": (0.0, 0.6, 0.0, 0.0, 0.2, 0.2), "experts": ("oracle",)}, "oracle"),
    ],
)
def test_experts_that_are_none_are_refused(options, why):
    with pytest.raises(SelfteachError, match=why):
        factworld(entities=60, relations=4, **options)


@pytest.mark.parametrize("options", [{}, {"says": "judge", "ways": (0.5, 0.1, 0.1, 0.1, 0.1, 0.1), "irrelevant": 0.3}])
def test_questions_say_what_supports_their_answers(options):
    task = factworld(entities=60, relations=4, hops=(2,), **options).train(0)
    first, second = task.tags["sub_questions"]
    start, middle, end = task.tags["entities"]
    assert start in first and middle in second and end == task.answer[0]
    assert len(task.tags["keywords"]) == 2 and middle in task.tags["keywords"][1][0]
    assert "<E1>" in task.tags["rubrics"][0] and {"<E0>", "<E1>"} == set(re.findall(r"<E\d>", task.tags["rubrics"][1]))
