"""The judges of the task preference: of pairs with a margin, and of single texts in coarse marks."""

from __future__ import annotations

import numpy as np
import pytest

from selfteach.core.task import Task
from selfteach.tasks.preference_rewards import coarse_worth, preferred, preferred_by, true_worth

WISH = Task("w", "", None, tags={"subjects": ("sea",), "mood": "calm"})


GOOD, POOR = "the quiet sea sleeps and the soft moon waits.", "the loud bird sings."


def test_a_judge_who_says_by_how_much_agrees_with_the_one_who_says_which():
    shares = [preferred_by(first=GOOD, second=POOR, task=WISH, rng_key=(i,), noise=0.5) for i in range(300)]
    says = [preferred(first=GOOD, second=POOR, task=WISH, rng_key=(i,), noise=0.5) for i in range(300)]
    assert [s > 0.5 for s in shares] == says and 0.5 < np.mean(says) < 1
    assert preferred_by(first=GOOD, second=POOR, task=WISH, rng_key=(0,), noise=0.0) == pytest.approx(1.0)
    assert preferred_by(first=GOOD, second=GOOD, task=WISH, rng_key=(0,), noise=0.0) == 0.5


def test_a_coarse_mark_is_the_worth_rounded():
    class Path:
        ids = np.arange(3)

    worth = true_worth(answer=POOR, task=WISH).value  # 0.4: grammar and variety
    assert worth == pytest.approx(0.4)
    assert coarse_worth(answer=POOR, task=WISH, path=Path(), noise=0.0, levels=4).value == pytest.approx(1 / 3)
    marks = set()
    for i in range(100):
        Path.ids = np.arange(i)
        marks.add(coarse_worth(answer=POOR, task=WISH, path=Path(), noise=0.3, levels=4).value)
    assert marks <= {0.0, 1 / 3, 2 / 3, 1.0} and len(marks) > 2
