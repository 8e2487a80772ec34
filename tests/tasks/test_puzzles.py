"""Drawn tasks: what they ask, that their demonstrations are right by their own verifiers, and what the verifiers
refuse.
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfteach.core.errors import BadValue, UnknownName
from selfteach.core.task import Task
from selfteach.reward.answer import exact_match
from selfteach.reward.expression import makes, tokens, value_of
from selfteach.tasks.chain_sum import chain_sum
from selfteach.tasks.countdown import HIGHEST, countdown
from selfteach.tasks.preference import preference
from selfteach.tasks.preference_rewards import features, grammatical, preferred, proxy_worth, true_worth
from selfteach.tasks.strings import FUNCTIONS, LETTERS, Call, strings

PUZZLES = {f.__name__: f for f in (chain_sum, countdown, strings, preference)}


@pytest.fixture(scope="module", params=sorted(PUZZLES))
def source(request):
    return PUZZLES[request.param]()


def worth(task: Task, completion: str) -> float:
    """What the task's own verifier gives the answer in a completion."""
    told = re.search(r"<answer>(.*)</answer>$", completion)
    assert told, completion
    return exact_match(answer=told[1], task=task).value


# ---- all of them


def test_solutions_are_right_and_cut_into_steps(source):
    for task in [source.train(i) for i in range(200)] + list(source.test):
        assert "".join(task.tags["steps"]) == task.tags["solution"] and len(task.tags["steps"]) >= 2
        assert worth(task, task.tags["solution"]) == 1.0
        assert exact_match(answer=task.answer[0], task=task).value == 1.0
        assert exact_match(answer=None, task=task).value < 1.0 and exact_match(answer="", task=task).value < 1.0
        assert task.tags["category"] and task.tags["difficulty"] >= 1


def test_demonstrations_are_right_but_for_their_slips(source):
    slips = Counter()
    for d in map(source.demos, range(600)):
        value = worth(d, d.data[0])
        if source.name == "preference":
            assert value == d.tags["worth"]
            slips["worse" if value < 1 else ""] += 1
        else:
            assert (value == 1.0) == (d.tags["slip"] == ""), d
            slips[d.tags["slip"]] += 1
    assert 0.05 < slips[""] / 600 < 0.97


def test_train_and_test_share_no_question(source):
    asked = {t.prompt for t in source.test}
    assert len(asked) == len(source.test) > 10
    for make in (source.train, source.demos):
        assert not asked & {make(i).prompt for i in range(1500)}


def test_a_task_is_a_function_of_its_number(source):
    again = PUZZLES[source.name]()
    assert [again.train(i) for i in (7, 3, 5)] == [source.train(i) for i in (7, 3, 5)]
    assert again.demos(900) == source.demos(900) and again.test == source.test
    assert PUZZLES[source.name](seed=1).train(0).prompt != source.train(0).prompt


# ---- expressions


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("2 + 3 * 4", 14),
        ("( 2 + 3 ) * 4", 20),
        ("8 - 3 - 2", 3),  # from left to right
        ("8 / 4 / 2", 1),
        ("8 - (3 - 2)", 7),
        ("1/3+1/3+1/3", 1),  # exact: 0.1-like sums are no matter
        ("7 / 2", Fraction(7, 2)),
        ("((((5))))", 5),
    ],
)
def test_expressions_by_hand(text, value):
    assert value_of(tokens(text)) == value


BAD = [
    "",
    "3 +",
    "+ 3",
    "-3",
    "3 + + 4",
    "(3 + 4",
    "3 + 4)",
    "3 4",
    "()",
    "2 ** 3",
    "8 // 2",
    "3,4",
    "1e3",
    "0x9",
    "3.5",
    "4 / 0",
    "4 / (2 - 2)",
]
BAD += ["__import__('os')", "3 + a", "3 = 3", "3 + 4 = 7", "(" * 1000, "3" * 1000, "3+" * 1000 + "3", "３ + ４"]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(BadValue):
        value_of(tokens(text))
    assert makes(answer=text, target=3, numbers=(3, 4, 8, 2)).value == 0.0


@given(
    st.recursive(
        st.integers(1, 99).map(str),
        lambda e: st.tuples(e, st.sampled_from("+-*/"), e).map(lambda t: f"( {t[0]} {t[1]} {t[2]} )"),
        max_leaves=8,
    )
)
def test_expressions_have_the_value_that_python_gives_them(text):
    try:
        value = eval(re.sub(r"\d+", lambda m: f"Fraction({m[0]})", text))
    except ZeroDivisionError:
        with pytest.raises(BadValue, match="zero"):
            value_of(tokens(text))
    else:
        assert value_of(tokens(text)) == value


@pytest.mark.parametrize(
    ("answer", "right", "close"),
    [
        ("3 * 4 + 3", 1.0, 1.0),
        ("(3+4) + 8", 1.0, 1.0),  # not all are used
        ("3 * 4", 0.0, 1 / 4),  # |12 - 15| = 3
        ("4 / 8", 0.0, 2 / 31),  # |1/2 - 15| = 29/2, so 1 / (31/2)
        ("3 * 5", 0.0, 0.0),  # 5 is not there
        ("4 + 4 + 8", 0.0, 0.0),  # one 4 only
        ("15", 0.0, 0.0),
        (None, 0.0, 0.0),
    ],
)
def test_countdown_is_judged_by_hand(answer, right, close):
    score = makes(answer=answer, target=15, numbers=(3, 4, 8, 3))
    assert score.value == right and score.parts == {"answer": right, "close": pytest.approx(close)}
    assert bool(score.why) == (right == 0)


# ---- countdown


@pytest.mark.parametrize("options", [{}, {"numbers": (4, 5), "largest": 25, "n_test": 60}])
def test_countdown_puzzles(options):
    s = countdown(**options)
    for task in [*(s.train(i) for i in range(200)), *s.test]:
        target, *numbers = map(int, re.findall(r"\d+", task.prompt))
        assert task.tags["difficulty"] == len(numbers) and target not in numbers and 1 <= target <= HIGHEST
        *again, other = map(int, re.findall(r"\d+", task.tags["paraphrase"]))
        assert (sorted(again), other) == (sorted(numbers), target) and task.tags["paraphrase"] != task.prompt
        assert len(task.tags["steps"]) == len(numbers)  # a step fewer than numbers, and the answer
        for a, op, b, c in re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)\.", task.tags["solution"]):
            assert value_of([a, op, b]) == int(c)


def test_a_countdown_puzzle_in_another_order_is_on_the_same_side():
    s = countdown(numbers=(3, 3))
    same = lambda t: tuple(sorted(map(int, re.findall(r"\d+", t.prompt.split("from")[1])))) + (t.prompt.split()[1],)  # noqa: E731
    assert not {same(t) for t in s.test} & {same(s.train(i)) for i in range(2000)}


def test_countdown_demonstrations_search():
    tries = Counter()
    for d in map(countdown(tries=2, noise=0.0).demos, range(300)):
        lines = re.findall(r"\d+ [-+*/] \d+ = (\d+)\. (yes|no)\.", d.data[0])
        assert [verdict for _, verdict in lines] == ["no"] * d.tags["tries"] + ["yes"]
        target = re.findall(r"\d+", d.prompt)[0]
        assert [value == target for value, _ in lines] == [False] * d.tags["tries"] + [True]
        tries[d.tags["tries"]] += 1
    assert set(tries) == {0, 1, 2}


def test_a_puzzle_without_a_miss_is_demonstrated_too():
    source = countdown(numbers=(2, 2), largest=99, tries=2, noise=1.0, n_test=5)
    demos = [source.demos(i) for i in range(200)]
    alone = [d for d in demos if d.tags["slip"] == ""]  # nothing can go wrong with 99 and 98
    assert 0 < len(alone) < 100 and all(worth(d, d.data[0]) == 1.0 and d.tags["tries"] == 0 for d in alone)


@pytest.mark.parametrize("name", ["chain_sum", "countdown"])
def test_reworded_is_the_share_asked_in_the_other_wording(name):
    s = PUZZLES[name](reworded=0.5, n_test=10)
    demos = [s.demos(i) for i in range(1500)]
    assert sum(d.prompt == d.tags["paraphrase"] for d in demos) / 1500 == pytest.approx(0.5, abs=0.05)
    assert not any(d.prompt == d.tags["paraphrase"] for d in map(PUZZLES[name](n_test=10).demos, range(100)))
    assert all(t.prompt != t.tags["paraphrase"] for t in s.test)


def test_a_sum_in_words_is_the_same_sum():
    for task in map(chain_sum(terms=(2, 6)).train, range(200)):
        first, rest = re.fullmatch(r"start with (\d+), (.*): what is left\?\n", task.tags["paraphrase"]).groups()
        signed = [(1 if how == "add" else -1) * int(n) for how, n in re.findall(r"(add|take away) (\d+)", rest)]
        assert (str(int(first) + sum(signed)),) == task.answer and len(signed) == task.tags["difficulty"]


# ---- strings


def test_string_functions_by_hand():
    given = {f: g("abca") for f, g in FUNCTIONS.items()}
    assert given == {
        "reverse": "acba",
        "rotate": "bcaa",
        "swap": "abca",
        "sort": "aabc",
        "upper": "ABCA",
        "devowel": "bc",
        "double": "abcaabca",
        "tail": "bca",
    }
    assert FUNCTIONS["swap"]("abc") == "cba" and FUNCTIONS["swap"]("a") == "a" and FUNCTIONS["sort"]("bAa") == "Aab"


def test_the_innermost_function_goes_first():
    call = Call(("reverse", "rotate"), "abc")  # reverse: cba, then rotate: bac
    assert call.text == "rotate ( reverse ( a b c ) )" and call.values == ["cba", "bac"]


def test_string_answers_count_every_letter():
    task = strings().test[0]
    one = Task("t", "", ("a B",), verifier=task.verifier)  # what question answering would read as "b"
    assert [exact_match(answer=a, task=one).value for a in ("a B", "aB", " a  B\n", "B", "ab", "a b", "", "B a")] == [
        1,
        1,
        1,
        0,
        0,
        0,
        0,
        0,
    ]


def test_compositions_are_held_out():
    s = strings(shown=1, held_out=0.3, n_test=300)
    names = lambda t: re.findall(r"[a-z]{2,}", t.prompt)[2:]  # after "what is"  # noqa: E731
    pairs = lambda t: set(zip(names(t), names(t)[1:], strict=False))  # noqa: E731
    trained = set().union(*(pairs(s.train(i)) for i in range(1500)))
    tested = set().union(*(pairs(t) for t in s.test if t.tags["held_out"]))
    assert len(trained) == 64 - s.about["pairs held out"] and tested - trained
    assert {t.tags["held_out"] for t in s.test} == {True, False} and not any(
        s.train(i).tags["held_out"] for i in range(300)
    )
    assert {s.demos(i).tags["depth"] for i in range(200)} == {1} and {s.train(i).tags["depth"] for i in range(200)} == {
        1,
        2,
        3,
    }


def test_string_categories_are_function_and_depth():
    s = strings()
    found = {s.train(i).tags["category"] for i in range(1500)}
    assert found == set(s.about["categories"]) and len(found) == 24
    assert all(t.tags["category"] == f"{t.prompt.split()[2]}/{t.prompt.count('(')}" for t in s.test)
    assert all(set("".join(t.answer[0].split()).lower()) <= set(LETTERS) for t in s.test)


# ---- preference


def wish(subjects=("sea", "moon"), mood="calm") -> Task:
    return Task("t", "", tags={"subjects": subjects, "mood": mood})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("the quiet sea sleeps and the soft moon waits.", 1.0),
        ("the quiet sea sleeps and the moon waits.", 0.85),  # one adjective of two: 0.3 + 0.15 + 0.2 + 0.2
        ("the quiet sea sleeps and the loud moon waits.", 0.7),  # (1 - 1) / 2 of the mood
        (
            "the quiet sea sleeps and the quiet moon sleeps.",
            0.69,
        ),  # one adjective; sea and moon alone stand but once, 2 of 6 words: 1/15
        ("quiet soft sea moon", 0.8),  # no sentence
        ("the quiet soft sea sleeps.", 0.85),  # one subject of two
        ("", 0.0),
        (None, 0.0),
        # 16 words, four too many; sea, moon, wind, bird and their verbs and adjectives all different
        ("the quiet sea sleeps and the soft moon waits and the still wind sings and the slow bird turns.", 0.7),
    ],
)
def test_true_worth_by_hand(text, value):
    if text == "the quiet sea sleeps and the quiet moon sleeps.":
        value = 0.3 + 0.15 + 0.2 + 0.2 * 2 / 6
    if text and text.endswith("turns."):
        value = 1.0 - 0.1 * (len(text.split()) - 12)
    assert true_worth(answer=text, task=wish()).value == pytest.approx(value)


def test_the_language():
    assert grammatical(["the", "quiet", "sea", "sleeps", "."]) and grammatical(
        ["the", "sea", "sleeps", "and", "the", "moon", "waits", "."]
    )
    for text in (
        "the sea .",
        "sea sleeps .",
        "the sea sleeps",
        "the sea sleeps . the",
        "the sea quiet sleeps .",
        "the sea sleeps and .",
        ".",
    ):
        assert not grammatical(text.split())


def test_the_proxy_is_a_guide_to_short_texts_and_a_trap_in_long_ones():
    s, better = preference(noise=0.6), Counter()
    short = [(d, d.data[0].removeprefix("<answer> ").removesuffix("</answer>")) for d in map(s.demos, range(400))]
    rows = [
        (true_worth(answer=t, task=d).value, proxy_worth(answer=t, task=d).value)
        for d, t in short
        if len(t.split()) <= 12
    ]
    for (a, x), (b, y) in pairwise(rows):
        if a != b:
            better[(a > b) == (x > y)] += 1
    assert better[True] / (better[True] + better[False]) > 0.6
    good = "the quiet sea sleeps and the soft moon waits."
    long = " and ".join(["the quiet soft sea sleeps", "the quiet soft moon waits"] * 4) + "."
    assert proxy_worth(answer=long, task=wish()).value > proxy_worth(answer=good, task=wish()).value
    assert true_worth(answer=long, task=wish()).value < 0 < true_worth(answer=good, task=wish()).value
    assert features(long, wish())["over"] == len(long.split()) - 12


def test_the_judge_is_bradley_terry_at_an_address():
    good, less = "the quiet sea sleeps and the soft moon waits.", "the quiet sea sleeps and the moon waits."
    ask = lambda i, **how: preferred(first=good, second=less, task=wish(), rng_key=("t", i), **how)  # noqa: E731
    share = sum(ask(i) for i in range(2000)) / 2000
    assert share == pytest.approx(1 / (1 + exp(-0.15 / 0.15)), abs=0.03)  # the gap is 1 - 0.85
    assert [ask(i) for i in range(20)] == [ask(i) for i in range(20)]
    assert all(ask(i, noise=0.0) for i in range(50)) and not any(ask(i, noise=0.0, bias=-0.2) for i in range(50))
    assert sum(
        preferred(first=good, second=good, task=wish(), rng_key=(i,), noise=0.0) for i in range(1000)
    ) == pytest.approx(500, abs=60)


def test_pairs_are_in_the_judge_s_order():
    exact, noisy = preference(judge=0.0, n_test=5), preference(judge=0.5, n_test=5)
    gap = lambda t: worth(t, t.data[0]) - worth(t, t.data[1])  # noqa: E731
    assert all(gap(exact.train(i)) >= 0 for i in range(200))
    assert 0.05 < sum(gap(noisy.train(i)) < 0 for i in range(200)) / 200 < 0.5


# ---- options


@pytest.mark.parametrize(
    ("build", "options", "says"),
    [
        (countdown, {"numbers": (1, 3)}, "numbers"),
        (countdown, {"largest": 100}, "largest"),
        (countdown, {"tries": -1}, "tries"),
        (countdown, {"reworded": 2}, "reworded"),
        (chain_sum, {"reworded": "yes"}, "reworded"),
        (strings, {"depth": (0, 3)}, "depth"),
        (strings, {"shown": 0}, "shown"),
        (strings, {"functions": ("sort",)}, "functions"),
        (strings, {"length": (3, 30)}, "length"),
        (strings, {"held_out": -0.1}, "held_out"),
        (preference, {"noise": 1.5}, "noise"),
        (preference, {"judge": -1}, "judge"),
        (preference, {"n_test": 0}, "n_test"),
    ],
)
def test_bad_options_name_themselves(build, options, says):
    with pytest.raises(BadValue, match=says):
        build(**options)


def test_unknown_functions_are_answered_with_near_ones():
    with pytest.raises(UnknownName, match="reverse"):
        strings(functions=("revers", "sort"))


def test_nothing_left_to_train_on_is_said():
    with pytest.raises(BadValue, match="no training question of 2 deep"):
        strings(depth=(2, 2), shown=2, held_out=1.0).train(0)


def test_nothing_is_the_target_unless_told_otherwise():
    assert makes(answer="3 - 3", numbers=(3, 3)).value == 1.0 and makes(answer="3 - 2", numbers=(3, 2)).value == 0.0
    assert makes(answer="3 - 2", numbers=(3, 2)).parts["close"] == 0.5  # 1 / (1 + 1)
