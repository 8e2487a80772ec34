"""Reports: what is graded, and that demonstrations are as careless as asked."""

from __future__ import annotations

import pytest

from selfteach.core import BadValue
from selfteach.core.tagged_text import last_between
from selfteach.tasks.report import CHECKLIST, UNSAID, Request, grade, report, well_reported

ASKED = Request("anna", (("home", "oslo"), ("pet", "cat"), ("colour", "red")), ("greet", "link"))
GOOD = "dear reader . anna is at home in oslo . also anna keeps a cat . also anna wears red ."


@pytest.mark.parametrize(
    "text,short",
    [
        (GOOD, {}),
        ("dear reader . anna keeps a cat .", {"content": 0.5, "order": 0.0, "link": 0.0}),
        ("dear reader .", {"content": 0.0, "order": 0.0, "link": 0.0}),
        # oslo, red, cat: of two neighbours one is as in the table
        (
            GOOD.replace("cat", "x").replace("wears red", "keeps a cat").replace("keeps a x", "wears red"),
            {"order": 0.5},
        ),
        (GOOD.removeprefix("dear reader . "), {"greet": 0.0}),
        (f"{GOOD.removeprefix('dear reader . ')} dear reader .", {"greet": 0.5}),
        (GOOD.replace("also anna wears", "anna wears"), {"link": 0.5}),
        (GOOD.replace("also ", ""), {"link": 0.0}),
        (f"{GOOD} thank you .", {"close": 0.0}),
        (f"{GOOD} also anna drinks tea .", {"true": 0.0}),
        (f"{GOOD} also anna likes red .", {"once": 0.0}),
        (f"{GOOD} this is well known .", {"brief": 0.0}),
    ],
)
def test_a_point_that_is_missed_is_marked_and_no_other(text, short):
    assert {name: grade(text, ASKED, name) for name in (*CHECKLIST, *UNSAID)} == {
        **dict.fromkeys((*CHECKLIST, *UNSAID), 1.0),
        **short,
    }


def test_a_style_that_is_not_demanded_is_to_be_left():
    plain = ASKED._replace(styles=("close",))
    assert [grade(GOOD, plain, s) for s in ("greet", "link", "close")] == [0.0, 0.0, 0.0]
    right = "anna lives in oslo . anna keeps a cat . thank you ."
    assert [grade(right, plain, s) for s in ("greet", "link", "close")] == [1.0, 1.0, 1.0]
    with pytest.raises(BadValue, match="no constraint 'x'"):
        grade(right, plain, "x")


def test_what_is_practised_is_right_and_what_is_shown_is_careless():
    source = report()
    assert source.practice and source.demos
    answers = {
        kind: [(t, last_between(t.data[0], "answer", "")) for t in map(items, range(300))]
        for kind, items in (("practice", source.practice), ("demo", source.demos))
    }
    right = {k: sum(well_reported(answer=a, task=t).value == 1 for t, a in v) / 300 for k, v in answers.items()}
    assert right["practice"] == 1.0 and 0.0 < right["demo"] < 0.12
    careful = report(kept=1, ordered=1, obeyed=(1, 1, 1), false=0, repeated=0, padded=0)
    assert careful.demos
    for t in map(careful.demos, range(50)):
        assert well_reported(answer=last_between(t.data[0], "answer", ""), task=t).value == 1.0
    task = source.train(0)
    assert well_reported(answer=task.tags["reference"], task=task).value == 1.0
    assert {t.prompt for t in source.test}.isdisjoint(source.train(i).prompt for i in range(500))


def test_options_are_checked():
    for option, match in (({"facts": (1, 3)}, "facts"), ({"kept": 2.0}, "kept"), ({"obeyed": (0.5,)}, "obeyed")):
        with pytest.raises(BadValue, match=match):
            report(**option)
