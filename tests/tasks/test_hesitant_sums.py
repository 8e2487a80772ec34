"""Sums with hesitations: as long as asked, right all the same, of many lengths."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from selfteach.configuration import task_source
from selfteach.core.errors import BadValue
from selfteach.core.random_keys import generator
from selfteach.tasks.hesitant_sums import HESITATION, hesitant_steps


def source(**options: Any) -> Any:
    return task_source("hesitant_sums", {"n_test": 100, **options})


def test_a_hesitation_has_at_most_as_many_words_as_allowed():
    first, second = " 7 + 3 = 0.", " 0 + 2 = 2."
    assert hesitant_steps((7, 3, 2), 0.0, 3, generator(0)) == [first, second]
    assert hesitant_steps((7, 3, 2), 1.0, 2, generator(0)) == [first, HESITATION, HESITATION, second] + [HESITATION] * 2
    assert hesitant_steps((7, 3, 2), 1.0, 2, generator(0), last=True) == [first, second] + [HESITATION] * 2


def test_lengths_are_those_of_the_chance_and_answers_are_right_unless_guessed():
    words, ways = list[int](), Counter[str]()
    for demo in map(source(terms=(5, 5), hesitant=0.5, most=3, guess=0.2).demos, range(1000)):
        ways[demo.tags["way"]] += 1
        text = demo.data[0]
        if demo.tags["way"] == "slowly":
            assert text.endswith(f"<answer> {demo.answer[0]}</answer>") and text.count("=") == 4
            words.append(text.count(HESITATION))
        else:
            assert "=" not in text and HESITATION not in text
    # behind each of four additions 1/2 + 1/4 + 1/8 words
    assert sum(words) / len(words) == pytest.approx(3.5, abs=0.25)
    assert min(words) == 0 and max(words) > 8 and len(set(words)) > 8
    assert ways["guess"] / 1000 == pytest.approx(0.2, abs=0.04)


def test_practice_begins_the_way_that_has_something_to_get_right():
    practised = source(guess=1.0).practice(3)
    assert practised.prompt.endswith("<think> slowly") and practised.data[0].startswith(" ")


@pytest.mark.parametrize("options", [{"hesitant": 1.5}, {"guess": -0.1}, {"most": -1}, {"terms": (1, 4)}])
def test_what_cannot_be_is_refused(options: dict[str, Any]):
    with pytest.raises(BadValue, match="hesitant_sums"):
        source(**options)
