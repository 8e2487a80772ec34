"""Hidden rules: which answers are right, how often, and what tells."""

import re
from collections import Counter

import pytest

from selfteach.configuration import task_source
from selfteach.core.errors import BadValue
from selfteach.tasks.hidden_rule import RULES, worked

RIGHT, SHOWN = (0.3, 0.3, 0.2, 0.1, 0.1), (0.5, 0.2, 0.1, 0.1, 0.1)


def source(**options):
    return task_source("hidden_rule", {"right": RIGHT, "shown": SHOWN, "practised": 0.0, **options})


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("all", "<think> all 2 + 9 = 1. 1 + 4 = 5. 5 + 1 = 6.</think><answer> all 6</answer>"),
        ("odd", "<think> odd 2 + 4 = 6.</think><answer> odd 6</answer>"),
        ("even", "<think> even 9 + 1 = 0.</think><answer> even 0</answer>"),
        ("ends", "<think> ends 2 + 1 = 3.</think><answer> ends 3</answer>"),
        ("middle", "<think> middle 9 + 4 = 3.</think><answer> middle 3</answer>"),
    ],
)
def test_rules_by_hand(rule, text):
    assert "".join(worked(rule, (2, 9, 4, 1))) == text


def test_rules_are_right_and_shown_in_their_shares_and_independently():
    built = source()
    demos = [built.demos(i) for i in range(4000)]
    right, shown = Counter(d.tags["rule"] for d in demos), Counter(d.tags["shown"] for d in demos)
    for rule, r, s in zip(RULES, RIGHT, SHOWN, strict=True):
        assert right[rule] / 4000 == pytest.approx(r, abs=0.03)
        assert shown[rule] / 4000 == pytest.approx(s, abs=0.03)
    agree = sum(d.answer[0] in d.data[0].partition("<answer>")[2] for d in demos) / 4000
    assert agree == pytest.approx(sum(r * s for r, s in zip(RIGHT, SHOWN, strict=True)), abs=0.03)


def test_practice_gives_each_rule_equally_often():
    built = source(practised=1.0)
    demos = [built.demos(i) for i in range(1000)]
    shown = Counter(d.tags["shown"] for d in demos)
    assert set(shown) == set(RULES) and min(shown.values()) > 150
    assert all(d.prompt.endswith(f"=\n<think> {d.tags['shown']}") for d in demos)


def test_a_question_always_has_the_same_rule_and_names_no_rule():
    tests = {t.prompt: t.answer for t in source().test}
    assert tests == {t.prompt: t.answer for t in source().test}
    assert not any(rule in prompt for rule in RULES for prompt in tests)
    assert tests != {t.prompt: t.answer for t in source(seed=1).test}


def test_a_cue_tells_the_rule_and_some_demonstrations_follow_it():
    built = source(cued=True)
    for item in built.test[:200]:
        first = int(item.prompt.split()[1])
        assert item.tags["rule"] == list(RULES)[first % 5]
    shown = [(d.tags["rule"], d.tags["shown"]) for d in map(source(cued=True, aware=0.5).demos, range(4000))]
    # half follow the right rule, the others whichever they do: the right one too in a fifth of the cases
    assert sum(a == b for a, b in shown) / 4000 == pytest.approx(0.5 + 0.5 * 0.2, abs=0.03)
    blind = [d.tags["shown"] for d in map(source(cued=True).demos, range(500))]
    assert blind == [d.tags["shown"] for d in map(source().demos, range(500))]  # a cue alone changes no demonstration


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"right": (0.5, 0.5)}, "right must be 5 shares"),
        ({"shown": (0.5, 0.5, 0.5, 0, 0)}, "shown must sum to 1"),
        ({"terms": 3}, "terms must be a whole number of at least 4"),
        ({"terms": 40}, "terms must be from 4 to 12"),
        ({"aware": 1.5}, "aware must be a share from 0 to 1"),
    ],
)
def test_bad_options_name_themselves(options, says):
    with pytest.raises(BadValue, match=re.escape(says)):
        source(**options)
