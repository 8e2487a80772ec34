"""The AUC by hand, and beside its definition."""

from __future__ import annotations

import numpy as np
import pytest

from selfteach.core.ranking import auc


def test_the_chance_that_a_right_one_is_above_a_wrong_one():
    # of four pairs: 3 > 2, 3 > 1, 2 = 2 (half), 2 > 1
    assert auc([3, 2], [2, 1]) == 3.5 / 4
    assert auc([1, 2], [3]) == 0.0 and auc([1], [1]) == 0.5
    assert auc([], [1]) is None and auc([1], []) is None
    draw = np.random.default_rng(0)
    high, low = draw.integers(0, 5, 30), draw.integers(0, 5, 20)
    pairs = [(h > w) + 0.5 * (h == w) for h in high for w in low]
    assert auc(high, low) == pytest.approx(np.mean(pairs))
