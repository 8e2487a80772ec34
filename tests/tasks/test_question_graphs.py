"""Questions grown from a graph of facts: what terms mean, what they need, and which are kept."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from selfteach.core.errors import BadValue
from selfteach.core.random_keys import generator
from selfteach.tasks.fact_graph import fact_graph
from selfteach.tasks.factworld import RELATIONS, fiction
from selfteach.tasks.question_graphs import Along, Meeting, edited, grow, meant, needed, phrase, question_of
from selfteach.tasks.world import Fact, Hop, World

# Ann and Bea live in Ulm, Ann and Cid are in Kraft; Dan is Ulm's mayor and mentors Ann.
WORLD = World(
    {name: RELATIONS[name] for name in ("home", "mayor", "mentor", "guild")},
    (
        Fact("Ann", "home", ("Ulm",)),
        Fact("Bea", "home", ("Ulm",)),
        Fact("Cid", "home", ("Rom",)),
        Fact("Ulm", "mayor", ("Dan",)),
        Fact("Ann", "mentor", ("Dan",)),
        Fact("Cid", "mentor", ("Bea",)),
        Fact("Ann", "guild", ("Kraft",)),
        Fact("Cid", "guild", ("Kraft",)),
    ),
)
EVERY = range(len(WORLD.facts))
HOME_OF_ANN, MAYOR = Along(Hop("home"), "Ann"), Hop("mayor")
BOTH = Meeting("person", (("home", "Ulm"), ("guild", "Kraft")))


def test_a_term_means_what_the_whole_graph_says():
    assert meant(WORLD, Along(MAYOR, HOME_OF_ANN)) == {"Dan"}
    assert meant(WORLD, Along(Hop("mayor", False), "Dan")) == {"Ulm"}
    assert meant(WORLD, BOTH) == {"Ann"}
    assert meant(WORLD, Meeting("person", (("home", "Ulm"),))) == {"Ann", "Bea"}
    assert meant(WORLD, Along(Hop("home"), "Dan")) == set()


def test_facts_are_in_the_order_in_which_they_can_be_looked_for():
    assert [WORLD.sentence(n) for n, _, _ in needed(WORLD, Along(MAYOR, HOME_OF_ANN))] == [
        "the home of Ann is Ulm.",
        "the mayor of Ulm is Dan.",
    ]
    nested = Meeting("person", (("home", Along(Hop("mayor", False), "Dan")), ("guild", "Kraft")))
    assert [WORLD.facts[n].relation for n, _, _ in needed(WORLD, nested)] == ["mayor", "home", "guild"]


def test_a_question_has_annotations_for_every_fact():
    made = question_of(WORLD, [Along(MAYOR, HOME_OF_ANN)], EVERY)
    assert made is not None and made.golds == ("Dan",) and made.text == "the mayor of the home of Ann"
    assert made.sub_questions == ("the home of Ann", "the mayor of Ulm")
    assert made.keywords[1] == ("mayor of Ulm", "Ulm mayor", "mayor Ulm")
    assert made.rubrics == ("the home of Ann is <E1>.", "the mayor of <E1> is <E0>.")
    assert len(made.unnamed) == 1 and made.dispersion == 1.0  # Ann's page and Ulm's
    met = question_of(WORLD, [BOTH], EVERY)
    assert met is not None and met.dispersion == 0.5  # both facts stand on Ann's page
    assert met.rubrics == ("the home of <E0> is Ulm.", "the guild of <E0> is Kraft.")


@pytest.mark.parametrize(
    "terms,documented,why",
    [
        ([Meeting("person", (("home", "Ulm"),))], EVERY, "two people live there"),
        ([Along(MAYOR, Along(Hop("home"), Meeting("person", (("home", "Ulm"),))))], EVERY, "of two people, one home"),
        ([Along(MAYOR, HOME_OF_ANN)], [0], "a fact without a document"),
        ([Along(Hop("home"), "Dan")], EVERY, "no fact"),
        ([HOME_OF_ANN, HOME_OF_ANN], EVERY, "a fact twice"),
        ([Along(Hop("mayor"), "Ulm"), Along(Hop("mayor", False), "Dan")], EVERY, "an answer that is named"),
        (["Ann"], EVERY, "nothing to find"),
    ],
)
def test_what_is_not_solvable_or_not_clear_is_left_out(terms, documented, why):
    assert question_of(WORLD, terms, documented) is None, why


def test_an_intersection_within_another_is_seen_to_end():
    inner = Meeting("person", (("home", "Rom"), ("guild", "Kraft")))
    outer = Meeting("person", (("mentor", inner), ("home", "Ulm")))
    assert phrase(WORLD, outer) == (
        "the person whose mentor is (the person whose home is Rom and whose guild is Kraft) and whose home is Ulm"
    )


@pytest.mark.parametrize("hops,joints", [(1, 0), (3, 0), (2, 1), (4, 1)])
def test_what_is_grown_means_its_answer_and_needs_so_many_facts(hops, joints):
    world, found = fiction(120, 6, 0), 0
    for i in range(40):
        draw = generator(0, "grow", i)
        answer = world.entities[int(draw.integers(len(world.entities)))]
        if (term := grow(world, answer, hops, joints, draw)) is not None and meant(world, term) == {answer}:
            assert len(needed(world, term)) == hops
            found += 1
    assert found > 5


def test_every_question_of_the_task_is_answered_by_its_own_documents():
    source = fact_graph(entities=120, relations=6, hops=(2, 3), parts=2, dispersion=0.7, n_test=20)
    texts, tests = {d.text for d in source.corpus()}, {t.prompt for t in source.test}
    for task in (*source.test, *(source.train(i) for i in range(20))):
        assert set(task.tags["chain"]) <= texts and task.tags["dispersion"] >= 0.7
        first, second = task.answer[0].split(" and ")
        assert first in " ".join(task.tags["chain"]) and second in " ".join(task.tags["chain"])
    assert not tests & {source.train(i).prompt for i in range(200)}
    demos = [source.demos(i) for i in range(60)]
    careful = [d for d in demos if d.tags["way"] == "carefully"]
    assert careful and all(f"<answer> {d.answer[0]}</answer>" in d.data[0] for d in careful)


def test_queries_of_all_parts_can_be_asked_at_once():
    source = fact_graph(entities=120, relations=6, hops=(2,), parts=2, ways=(0, 1, 0, 0), practised=0.0, n_test=5)
    demo = source.demos(0)
    (text,) = demo.data
    asked, found = [ways[0] for ways in demo.tags["keywords"]], demo.tags["chain"]
    assert f"<search>{asked[0]} ## {asked[2]}</search><information>{found[0]} ## {found[2]}</information>" in text
    assert f"<search>{asked[1]} ## {asked[3]}</search><information>{found[1]} ## {found[3]}</information>" in text


@pytest.mark.parametrize("options", [{"hops": (3,)}, {"hops": (2,), "parts": 2}, {"hops": (1,), "edits": 3}])
def test_what_demonstrations_find_is_drawn_anew(options):
    """Each search asks for what the last one found, the last leads to the answer, and the world's facts are none."""
    chains = {"entities": 120, "relations": 6, "ways": (1.0, 0.0, 0.0, 0.0), "practised": 0.0, "n_test": 5, **options}
    made, held = fact_graph(**chains, unheld=True), fact_graph(**chains)
    true, parts = {d.text for d in made.corpus()}, options.get("parts", 1)
    seen = [
        (made.demos(i), re.findall(r"<search>(.*?)</search><information>(.*?)<", made.demos(i).data[0]))
        for i in range(40)
    ]
    assert [d.prompt for d, _ in seen] == [held.demos(i).prompt for i in range(40)]
    for demo, found in seen:
        each, ends = len(found) // parts, []
        for part in range(parts):
            here = ""
            for query, sentence in found[part * each : (part + 1) * each]:
                named = {name for name in re.findall(r"[A-Z][a-z]+", sentence) if name not in query.split()}
                assert not here or here in query.split()
                (here,) = named
            ends.append(here)
        assert demo.data[0].endswith(f"<answer> {' and '.join(ends)}</answer>")
    stated = [sentence for _, found in seen for _, sentence in found]
    assert sum(sentence in true for sentence in stated) < 0.1 * len(stated)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"joints": 1, "unheld": True}, "unheld is of chains"),
        ({"hops": (1,), "joints": 1}, "hops must be from 2 to 6"),
        ({"parts": 4}, "parts 1 to 3"),
        ({"ways": (1.0, 0.5, 0.0, 0.0)}, "4 shares that sum to 1"),
        ({"dispersion": 2.0}, "share from 0 to 1"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(BadValue, match=message):
        fact_graph(**options)


def test_an_edit_makes_a_question_harder_and_leaves_its_answer():
    def edits(term, documented=EVERY):
        made = [edited(WORLD, term, generator(0, "edit", i), documented) for i in range(20)]
        assert all(m is None or meant(WORLD, m) == meant(WORLD, term) for m in made)
        return {m and phrase(WORLD, m) for m in made}

    # injected: what leads to Ulm. Not its description, the town whose mayor is Dan: that needs the same fact again
    assert edits(Along(MAYOR, "Ulm")) == {"the mayor of the home of Ann", "the mayor of the home of Bea"}
    # in an intersection: Ann's own home is needed already, so is her guild
    assert edits(BOTH) == {
        "the person whose home is the home of Bea and whose guild is Kraft",
        "the person whose home is the town whose mayor is Dan and whose guild is Kraft",  # fuzzed
        "the person whose home is Ulm and whose guild is the guild of Cid",
    }
    assert edits(Along(Hop("home"), "Bea")) == {"the home of the mentor of Cid"}
    assert edits(Along(Hop("guild"), "Cid")) == {None}  # nothing leads to Cid
    assert edits(Along(MAYOR, "Ulm"), [3]) == {None}  # nothing else is documented


def test_versions_of_a_question_stand_side_by_side_and_share_its_answer():
    source = fact_graph(entities=120, relations=6, hops=(1,), edits=2, n_test=60)
    runs = [[source.train(3 * i + v) for v in range(3)] for i in range(40)]
    assert all([t.tags["hops"] for t in run] == [1, 2, 3] for run in runs)
    assert all(len({t.answer for t in run}) == 1 for run in runs)
    assert all(set(a.tags["chain"]) < set(b.tags["chain"]) for run in runs for a, b in pairwise(run))
    tested = {t.answer for t in source.test}
    assert not tested & {t.answer for run in runs for t in run} and {t.tags["hops"] for t in source.test} == {1, 2, 3}
    with pytest.raises(BadValue, match="edits must be 0 to 6"):
        fact_graph(edits=2, parts=2)
