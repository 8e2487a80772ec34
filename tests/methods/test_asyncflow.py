"""AsyncFlow: rollouts one version ahead, never more; without that it is GRPO."""

from __future__ import annotations

import pytest
from support.loops import advance, bandit, loop_of

from selfteach.core import BadValue
from selfteach.methods import asyncflow, grpo


def test_it_is_grpo_one_version_ahead():
    made = asyncflow(groups=2, rollouts=4)
    assert made.stage.staleness == 1
    assert str(made.replace(staleness=0).stage) == str(grpo(groups=2, rollouts=4).stage)
    assert str(asyncflow(groups=2, rollouts=4, ahead=0).stage) == str(grpo(groups=2, rollouts=4).stage)
    with pytest.raises(BadValue, match="asyncflow: ahead must be at least 0"):
        asyncflow(ahead=-1)


def test_data_is_never_older_than_it_says(letters):
    for ahead in (1, 2):
        ages = [m["staleness/max"] for m in advance(loop_of(bandit().replace(staleness=ahead), letters), 6)]
        assert ages == [min(step, ahead) for step in range(6)]
