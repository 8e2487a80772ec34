"""The shared constructor: samples that are late by deliveries or by whole batches."""

from __future__ import annotations

import pytest
from support.battery import of
from support.loops import advance, bandit, loop_of


@pytest.mark.parametrize("name", ["rec", "m2po", "bapo", "grpo"])
def test_stale_samples_by_late_deliveries_and_by_late_batches(name, letters):
    assert of(name, sync=3).stage.sync == 3
    method = of(name, groups=2, rollouts=3, sync=1, delay=2).replace(reward=bandit(paid="spread").stage.reward)
    loop, stored = loop_of(method, letters), {}
    loop.find = stored.__getitem__
    told = []
    for _ in range(4):
        told += advance(loop)
        stored |= {e.id: e.tree for g in loop.current_step[0] for e in g.episodes}
    assert ["policy/loss" in m for m in told] == [False, False, True, True]
    _, batch = loop.current_step
    assert batch is not None and set(batch.get("version").tolist()) == {1}, (
        "the fourth step learns what the second drew"
    )


def test_waiting_for_late_batches_is_not_starving(letters):
    method = of("grpo", groups=1, rollouts=2, delay=21).replace(
        reward=bandit(paid="spread").stage.reward
    )  # 20 steps without a lesson starve
    told = advance(loop_of(method, letters), 21)
    assert all("policy/loss" not in m for m in told)
