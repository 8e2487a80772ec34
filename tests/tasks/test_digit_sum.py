"""Digit sums: that ways differ as they say, and that nothing of the test is trained on."""

import hashlib
import itertools
import re
from collections import Counter

import numpy as np
import pytest

from selfteach.configuration import task_source
from selfteach.core.errors import BadValue
from selfteach.rollout.attempts import RETRY, retry_prompt
from selfteach.tasks.digit_sum import UNPRACTISED, WAYS, right_addition, solve_text


def source(**options):
    return task_source("digit_sum", {"practised": 0.0, **options})


def only(way, **options):
    return source(**{**dict.fromkeys(WAYS, 0.0), way: 1.0}, **options)


def answered(demo):
    return re.search(r"<answer> ([\d ]+)</answer>$", demo.data[0])[1]


def share_right(built, n=400):
    return sum(answered(d) == d.answer[0] for d in map(built.demos, range(n))) / n


def test_a_solution_by_hand():
    assert solve_text((2, 9, 4, 7)) == "<think> slowly 2 + 9 = 1. 1 + 4 = 5. 5 + 7 = 2.</think><answer> 2</answer>"


@pytest.mark.parametrize(
    ("way", "guesses", "low", "high"),
    [
        ("slowly", 10, 1, 1),
        ("twice", 10, 1, 1),
        ("guess", 10, 0.05, 0.15),
        ("guess", 100, 0, 0.03),
        ("quickly", 10, 0.05, 0.15),
        ("looping", 10, 0.05, 0.15),
        ("skipping", 10, 0.05, 0.15),  # right where the last digit is 0
    ],
)
def test_how_often_a_way_is_right(way, guesses, low, high):
    assert low <= share_right(only(way, terms=(4, 4), guesses=guesses)) <= high


def test_ways_come_in_their_shares_and_differ_in_length():
    built = source(terms=(4, 4), slowly=0.2, quickly=0.1, guess=0.3, twice=0.2, looping=0.1, skipping=0.1)
    demos = [built.demos(i) for i in range(2000)]
    shares = Counter(d.tags["way"] for d in demos)
    for way, share in built.task_options.items():
        if way in WAYS:
            assert shares[way] / 2000 == pytest.approx(share, abs=0.03)
    steps = {way: [d.data[0].count("+") for d in demos if d.tags["way"] == way] for way in WAYS}
    assert {way: set(n) for way, n in steps.items() if way != "looping"} == {
        "slowly": {3},
        "quickly": {1},
        "guess": {0},
        "twice": {6},
        "skipping": {2},
    }
    assert max(steps["looping"]) > 6


def test_errors_of_skipping_agree_and_those_of_guessing_do_not():
    """Asked often enough, those who skip give one answer to a question, those who guess give all of ten."""
    few = {w: only(w, terms=(3, 3), n_test=1) for w in ("skipping", "guess")}
    answers = {w: {} for w in few}
    for way, built in few.items():
        for demo in map(built.demos, range(4000)):
            answers[way].setdefault(demo.prompt, set()).add(answered(demo))
    assert max(map(len, answers["skipping"].values())) == 1 < max(map(len, answers["guess"].values()))


def test_estimates_are_marked_and_gone_on_with():
    built = source(terms=(6, 6), slowly=1.0, quickly=0.0, guess=0.0, estimated=0.3)
    marks = wrong = 0
    for demo in map(built.demos, range(500)):
        digits = [int(d) for d in demo.prompt.split()[1:-1]]
        total = digits[0]
        for (a, b, mark, c), digit in zip(
            re.findall(r"(\d) \+ (\d) ([=~]) (\d)\.", demo.data[0]), digits[1:], strict=True
        ):
            assert (int(a), int(b)) == (total, digit)
            assert mark == "~" or (total + digit) % 10 == int(c)
            assert right_addition(step=f" {a} + {b} {mark} {c}.") == ((total + digit) % 10 == int(c))
            marks, wrong, total = marks + (mark == "~"), wrong + ((total + digit) % 10 != int(c)), int(c)
        assert answered(demo) == str(total)
    assert marks / 2500 == pytest.approx(0.3, abs=0.04) and wrong / marks == pytest.approx(0.9, abs=0.04)
    assert built.test[0].judge("step") == right_addition()


def test_practice_gives_ways_with_steps_equally_often_and_teaches_the_rest():
    built = source(terms=(4, 4), slowly=0.02, quickly=0.0, twice=0.08, guess=0.9, practised=0.5)
    demos = [built.demos(i) for i in range(1000)]
    given = [d for d in demos if d.tags["kind"] == "practice"]
    assert len(given) == pytest.approx(500, abs=60)
    assert {d.tags["way"] for d in given} == {"slowly", "twice"}
    assert sum(d.tags["way"] == "slowly" for d in given) == pytest.approx(250, abs=50)
    for demo in given:
        assert demo.prompt.endswith(f" =\n<think> {demo.tags['way']}") and demo.data[0].startswith(" ")
    assert sum(d.tags["way"] == "slowly" for d in demos if d.tags["kind"] == "demo") < 40


def test_training_and_test_share_no_question_and_a_pool_comes_round():
    built, endless = source(pool=7), source()
    prompts = {t.prompt for t in built.test}
    assert len(prompts) == 2000
    assert not prompts & {built.demos(i).prompt for i in range(2000)}
    assert not prompts & {endless.train(i).prompt for i in range(2000)}
    assert [built.train(i) for i in range(7)] == [built.train(i) for i in range(7, 14)]
    assert len({built.train(i).prompt for i in range(70)}) == 7


def test_hints_hold_the_first_additions():
    built = source(hinted=1.0, terms=(5, 5))
    hinted = [built.demos(i) for i in range(50)]
    assert any(re.search(r"=\n slowly \d \+ \d = \d\.", d.prompt) for d in hinted)


def test_each_place_has_signs_of_its_own_and_estimates_of_its_own_chance():
    built = source(terms=(7, 7), slowly=1.0, quickly=0.0, guess=0.0, tiring=0.5, rested=3, seldom=0.1, lettered=True)
    shown = [built.demos(i).data[0] for i in range(400)]
    signs = np.array([re.findall(r" ([a-zA-Z]) \d\.", text) for text in shown])
    assert ["".join(sorted(set(column.tolist()))) for column in signs.T] == ["a", "b", "c", "d", "Ee", "Ff"]
    # none up to the fourth addition, then 0.5, then 1, of which one in ten is left
    assert abs(np.mean(signs[:, 4] == "E") - 0.5) < 0.1 and abs(np.mean(signs[:, 5] == "F") - 0.9) < 0.06
    task = built.train(0)
    judge, steps = task.judges["step"], task.tags["steps"]
    assert "f" in steps[-2] and [judge(step=s) for s in steps[1:-1]] == [True] * 6


def test_what_is_doubted_is_written_again_and_the_sum_goes_on_from_it():
    plain, built = (
        source(terms=(4, 4), slowly=1.0, quickly=0.0, guess=0.0, practised=0.0, estimated=0.5, doubted=k)
        for k in (0, 2)
    )
    assert built.defaults["max_tokens"] == 3 * (plain.defaults["max_tokens"] - 9) + 9
    for i in range(100):
        once, more = (re.findall(r" \d \+ \d [=~] \d\.", made.demos(i).data[0]) for made in (plain, built))
        assert more == [step for step in once for _ in range(3 if "~" in step else 1)]
    assert all("~" not in built.train(i).tags["solution"] for i in range(20))


def test_forecasts_are_any_number_of_attempts_behind_their_word():
    built = source(foreseen=0.5, practised=0.0)
    shown = [built.demos(i) for i in range(200)]
    said = [d for d in shown if d.prompt.startswith("foresee\nadd ")]
    assert 70 < len(said) < 130 and all(d.prompt.startswith("add ") for d in shown if d not in said)
    numbers = {re.fullmatch(r"<answer> (\d)</answer>", d.data[0])[1] for d in said}
    assert numbers == set("012345678")
    assert not any("foresee" in d.prompt for d in (source(practised=0.0).demos(i) for i in range(50)))


def test_sensed_forecasts_go_by_the_number_of_digits_give_or_take_one():
    built = source(terms=(3, 7), foreseen=1.0, sensed=1.0, practised=0.0)
    said = [(d.tags["terms"], int(re.search(r"\d", d.data[0])[0])) for d in map(built.demos, range(400))]
    # 8, 6, 4, 2 and 0 of eight attempts, from the fewest digits to the most, give or take one
    for terms, numbers in ((3, {7, 8}), (4, {5, 6, 7}), (5, {3, 4, 5}), (6, {1, 2, 3}), (7, {0, 1})):
        assert {n for t, n in said if t == terms} == numbers


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"slowly": 0.5}, "must sum to 1, not 1.2"),
        ({"guess": 1.5}, "guess must be a share"),
        ({"terms": (2, 5)}, "terms must be (fewest, most) from 3"),
        ({"practised": 2}, "practised must be a share"),
        ({"guesses": 0}, "guesses must be a whole number of at least 10"),
        ({"pool": -1}, "pool must be a whole number"),
        ({"unseen": 1}, "unseen must leave some of 5 to 5 terms to train on"),
        ({"slips": 2}, "slips must be a share"),
    ],
)
def test_bad_options_name_themselves(options, says):
    with pytest.raises(BadValue, match=re.escape(says)):
        source(**options)


def test_digits_that_are_added_are_at_most_the_largest():
    built = source(terms=(4, 4), largest=3)
    rows = [[int(d) for d in re.findall(r"\d", built.train(i).prompt)] for i in range(300)]
    assert {first for first, *_ in rows} == set(range(10))
    assert {d for _, *added in rows for d in added} == set(range(4))
    facts = {(s[1], s[2]) for i in range(600) for s in re.finditer(r"(\d) \+ (\d)", built.demos(i).data[0])}
    assert len(facts) == 40  # of the hundred that all digits have


def test_practice_names_the_way_and_is_the_same_whatever_the_shares():
    built, other = source(terms=(4, 5)), only("guess", terms=(4, 5), guesses=50)
    items = [built.practice(i) for i in range(200)]
    assert items == [other.practice(i) for i in range(200)]
    assert list(built.words()) == list(other.words())
    assert {t.tags["way"] for t in items} == {"slowly", "twice", "skipping"}
    assert all(t.prompt.endswith(f"<think> {t.tags['way']}") for t in items)
    assert {t.tags["terms"] for t in items} == {3, 4, 5}
    assert sum(t.data[0].count("~") for t in items) == 0
    often = source(terms=(4, 5), estimated=0.9)
    signs = "".join(often.practice(i).data[0] for i in range(200))
    assert 0.1 < signs.count("~") / signs.count("+") < 0.3
    tested = {t.prompt for t in built.test}
    assert not any(t.prompt.splitlines()[0] + "\n" in tested for t in items)


def test_estimates_become_likelier_from_addition_to_addition():
    built = only("slowly", terms=(6, 6), estimated=0.1, tiring=0.2)
    signs = [re.findall(r"[=~]", built.demos(i).data[0]) for i in range(1500)]
    for n, chance in enumerate((0.1, 0.3, 0.5, 0.7, 0.9)):
        assert sum(s[n] == "~" for s in signs) / len(signs) == pytest.approx(chance, abs=0.04)


def test_practice_has_not_changed():
    """The first texts as they were when the first claims were decided: their warm starts depend on them."""
    built = task_source(
        "digit_sum", {"largest": 3, "practised": 0.7, "estimated": 0.15, "tiring": 0.15, "terms": (3, 8)}
    )
    texts = "".join(t.prompt + t.data[0] for make in (built.practice, built.demos) for t in map(make, range(200)))
    assert hashlib.blake2b(texts.encode(), digest_size=8).hexdigest() == "c481764e4d2f2b65"


def test_an_expert_s_demonstrations_are_its_own():
    built = source(terms=(4, 5), slowly=0.0, quickly=0.6, expert="slowly", slips=0.3)
    assert not any("slowly" in built.demos(i).data[0] for i in range(300))
    shown = [built.experts(i) for i in range(600)]
    assert {t.tags["style"] for t in shown} == {"slowly"} and {t.tags["terms"] for t in shown} == {4, 5}
    wrong = [t for t in shown if t.tags["slip"]]
    assert len(wrong) / 600 == pytest.approx(0.3, abs=0.06)
    assert all((answered(t) != t.answer[0]) == (t in wrong) for t in shown)
    # one addition is wrong, and the sum goes on with what it gave
    for demo in shown:
        sums = [tuple(map(int, s)) for s in re.findall(r"(\d) \+ (\d) = (\d)", demo.data[0])]
        assert sum((a + b) % 10 != c for a, b, c in sums) == (demo in wrong)
        assert all(before[2] == after[0] for before, after in itertools.pairwise(sums))
    tested = {t.prompt for t in built.test}
    assert not any(t.prompt in tested for t in shown)
    assert source().experts is None


def test_every_demonstration_says_its_style_and_whether_it_slips():
    built = source(terms=(3, 3), skipping=0.3, slowly=0.0, guess=0.4)
    for demo in map(built.demos, range(200)):
        assert demo.tags["style"] == demo.tags["way"] == demo.data[0].split()[1].partition("<")[0]
        lucky = demo.tags["way"] in UNPRACTISED  # right by chance is no expert's way
        assert (demo.tags["slip"] == "") == (answered(demo) == demo.answer[0] and not lucky)


def test_a_demonstration_has_the_judges_of_its_task():
    built = source(foreseen=0.5)
    for i in range(10):
        for item in (built.demos(i), built.practice(i)):
            assert item.judges.keys() == built.test[0].judges.keys()


def test_what_is_unseen_is_practised_and_tested_alone():
    built = source(terms=(3, 7), unseen=2)
    seen = {made(i).tags["terms"] for i in range(200) for made in (built.train, built.demos)}
    assert seen == {3, 4, 5}
    assert (
        {built.practice(i).tags["terms"] for i in range(200)}
        == {t.tags["terms"] for t in built.test}
        == set(range(3, 8))
    )


def test_rest_comes_before_tiring():
    built = only("slowly", terms=(7, 7), tiring=0.4, rested=2)
    signs = [re.findall(r"[=~]", built.demos(i).data[0]) for i in range(800)]
    for n, chance in enumerate((0, 0, 0, 0.4, 0.8, 1.0)):
        assert sum(s[n] == "~" for s in signs) / len(signs) == pytest.approx(chance, abs=0.05)


def test_second_attempts_stand_behind_a_first_and_mostly_copy_it():
    built = source(terms=(4, 4), again=0.5, copied=0.8)
    demos = [built.demos(i) for i in range(1000)]
    second = [d for d in demos if RETRY in d.prompt]
    assert len(second) == pytest.approx(500, abs=60)
    for demo in second:
        question, first, asked = re.split(r"(<think>.*</answer>)", demo.prompt, maxsplit=1)
        assert asked == retry_prompt(question) and first.startswith("<think> ")
    copied = sum(d.data[0] in d.prompt for d in second) / len(second)
    assert 0.8 < copied < 0.95  # some do again by themselves what was done
    practised = [built.practice(i) for i in range(200)]
    assert any(RETRY in d.prompt for d in practised)
    assert all(d.prompt.endswith(f"<think> {d.tags['way']}") for d in practised)


def test_the_other_wording_asks_the_same():
    built = source(reworded=0.4)
    demos = [built.demos(i) for i in range(500)]
    other = [d for d in demos if d.prompt == d.tags["paraphrase"]]
    assert len(other) == pytest.approx(200, abs=40)
    for item in map(built.train, range(5)):
        assert re.findall(r"\d", item.tags["paraphrase"]) == re.findall(r"\d", item.prompt)
        assert item.tags["paraphrase"] != item.prompt


def test_of_a_pair_that_comes_first_which_is_worked_out_further_but_for_the_judge_s_noise():
    built = source()  # five digits: slowly works out all additions, quickly half, a guess none
    tested, found = {t.prompt for t in built.test}, Counter[tuple[str, str]]()
    for item in map(built.pairs, range(1500)):
        assert item.prompt not in tested and item.data[0] != item.data[1]
        found[tuple(re.match(r"<think> (\w+)", text)[1] for text in item.data)] += 1
    for better, worse, chance in (
        ("slowly", "quickly", 0.881),
        ("quickly", "guess", 0.881),
        ("slowly", "guess", 0.982),
    ):
        won, lost = found[better, worse], found[worse, better]
        assert won / (won + lost) == pytest.approx(chance, abs=0.05)  # sigmoid(0.5 / 0.25), sigmoid(1 / 0.25)
    (alike,) = (n for ways, n in found.items() if ways == ("guess", "guess"))
    assert alike and ("slowly", "slowly") not in found


def test_answers_that_are_all_the_same_make_no_pair():
    with pytest.raises(BadValue, match="answers to a question are all the same"):
        only("slowly").pairs(0)
