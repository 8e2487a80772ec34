"""Questions about one's own ability: what is true of them by what was shown, and how often it is said."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from selfteach import task_source
from selfteach.core import BadValue
from selfteach.reward.answer import exact_match
from selfteach.tasks.self_knowledge import chance

SOURCE = task_source("self_knowledge", {"n_test": 60})


def test_how_often_a_sum_is_done_rightly_is_how_often_it_is_shown_so():
    # five digits: additions are estimated with chances 0, .1, .2, .3, so that .504 are exact, and of the rest a tenth
    assert chance(5, 0.1) == pytest.approx(0.9 * 0.8 * 0.7 + 0.1 * (1 - 0.504))
    shown: dict[int, list[bool]] = {}
    for item in (SOURCE.demos(3 * i) for i in range(1500)):
        right = exact_match(answer=item.data[0].rsplit("<answer> ")[-1].removesuffix("</answer>"), task=item).value
        shown.setdefault(item.tags["terms"], []).append(right == 1.0)
    assert sorted(shown) == [3, 4, 5, 6, 7, 8]
    for terms, hits in shown.items():
        # of about 250 a share's standard error is 0.03
        assert np.mean(hits) == pytest.approx(chance(terms, 0.1), abs=0.1)


def test_what_is_true_and_how_often_it_is_said():
    truth = {item.tags["terms"]: item.answer[0] for item in SOURCE.test}
    assert truth == {n: "Feasible" if n <= 5 else "Infeasible" for n in range(3, 9)}
    judged = [SOURCE.demos(3 * i + 1) for i in range(600)]
    said = Counter(d.data[0] == f"<answer> {d.answer[0]}</answer>" for d in judged if "Perhaps" not in d.data[0])
    assert sum(said.values()) / 600 == pytest.approx(0.5, abs=0.08) and said[True] / 300 == pytest.approx(0.7, abs=0.1)


def test_tasks_that_are_named_are_of_their_kind_as_often():
    questions = SOURCE.questions
    assert questions is not None
    hits = []
    for item in (SOURCE.demos(3 * i + 2) for i in range(300)):
        *shown, last = item.prompt.splitlines()
        label = last.removeprefix("Name one more that is ").removesuffix(".")
        assert all(questions.supported(s.removeprefix(f"{label}: "), (label,)) for s in shown)
        text = item.data[0].removeprefix("<question> ").removesuffix("</question>")
        hits.append(questions.supported(text, (label,)))
    assert np.mean(hits) == pytest.approx(0.7, abs=0.1)
    assert questions.supported("add 1 2", ("Feasible",)) is None is questions.supported("add 1 9 9 9", ("Feasible",))


def test_a_bound_must_tell_sums_apart():
    with pytest.raises(BadValue, match="all sums are of one kind"):
        task_source("self_knowledge", {"bound": 0.95})
