"""Sums in rounds: that a round can be gone on from where it says what is left, and that the last one then is right."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from selfteach.configuration import task_source
from selfteach.core.errors import BadValue
from selfteach.core.random_keys import generator
from selfteach.rollout.attempts import COMPARE
from selfteach.tasks.sums_in_rounds import furthest, work


def source(**options: Any) -> Any:
    return task_source("sums_in_rounds", options)


def test_three_rounds_by_hand():
    draw = generator(0)
    # 7 + 3 = 0, 0 + 2 = 2; 2 + 1 = 3, 3 + 3 = 6; 6 + 0 = 6
    numbers: tuple[int, ...] = (7, 3, 2, 1, 3, 0)
    answers = []
    for _ in range(4):
        _, _, numbers = work(numbers, "partly", 2, draw)
        answers.append(numbers)
    assert answers == [(2, 1, 3, 0), (6, 0), (6,), (6,)]
    assert work((7, 3, 2, 1), "vaguely", 2, draw) == ("vaguely", [" 7 + 3 = 0.", " 0 + 2 = 2."], (2,))
    way, steps, guessed = work((7, 3), "guess", 2, draw)
    assert (way, steps, len(guessed)) == ("guess", [], 1)


def test_a_last_round_is_right_where_all_rounds_went_partly():
    demos = [source(partly=1.0, vaguely=0.0, guess=0.0).demos(i) for i in range(300)]
    last = [d for d in demos if "final round" in d.prompt]
    assert len(last) == pytest.approx(100, abs=30)
    assert all(d.data[0].endswith(f"<answer> {d.answer[0]}</answer>") for d in last)
    early = [d for d in demos if "Progress" not in d.prompt]
    assert all(re.search(r"<answer> \d( \d)+</answer>$", d.data[0]) for d in early)


def test_ways_come_in_their_shares_and_what_is_done_stays():
    demos = [source().demos(i) for i in range(2000)]
    first = Counter(d.tags["way"] for d in demos if d.tags["round"] == 1)
    assert first["partly"] / first.total() == pytest.approx(0.3, abs=0.05)
    assert first["guess"] / first.total() == pytest.approx(0.4, abs=0.05) and "done" not in first
    done = [d for d in demos if d.tags["way"] == "done"]
    assert all(re.search(r'"(\d)"', d.prompt)[1] == d.data[0][-10] for d in done)  # <answer> 5</answer>
    practised = [source().practice(i) for i in range(50)]
    assert all(d.prompt.endswith(f"<think> {d.tags['way']}") and d.tags["way"] in ("partly", "done") for d in practised)


def test_a_round_goes_on_from_the_draft_that_says_most_of_what_is_left():
    built = source(terms=(3, 5), rounds=2, drafts=4)
    behind = [d for d in map(built.demos, range(1000)) if COMPARE in d.prompt]
    assert len(behind) == pytest.approx(500, abs=60) and not any("Progress" in d.prompt for d in behind)
    counts = set[int]()
    for demo in behind:
        question, asked = demo.prompt.split("<answer>", maxsplit=1)
        drafts = re.findall(r"<answer> ([\d ]+)</answer>", demo.prompt)
        counts.add(len(drafts))
        assert asked.endswith(f"\n{COMPARE}\n{question}") and "think" not in asked
        best = max(drafts, key=lambda a: (len(a), drafts.count(a)))
        if demo.tags["way"] in ("partly", "vaguely"):
            first, second, *_ = best.split()
            assert demo.data[0].startswith(f"<think> {demo.tags['way']} {first} + {second} = ")
        assert (demo.tags["way"] == "done") == (len(best) == 1)
    assert counts == {1, 2, 3, 4}
    assert furthest([(1,), (2,), (2,)]) == (2,) and furthest([(1, 2), (3,), (3,)]) == (1, 2)


def test_no_round_can_end_a_sum_and_mistakes_are_named():
    built = source()
    assert built.defaults["max_tokens"] < 5 * 6  # five additions of six tokens
    with pytest.raises(BadValue, match=r"take rounds=4"):
        source(terms=(6, 8))
    with pytest.raises(BadValue, match=r"must sum to 1, not 1.2"):
        source(guess=0.6)
