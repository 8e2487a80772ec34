"""Reasoning Core's curriculum by hand: a level that follows the share of right answers, and tasks drawn at it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from support.battery import of
from support.episodes import single_turn_group

from selfteach.core import BadValue, RolloutGroup, Task, TaskSource
from selfteach.methods.reasoning_core import adaptive_level

FRESH: dict[str, Any] = {"level": None, "range": None, "next": 0}
SOURCE = TaskSource("t", lambda i: Task(f"q{i}", f"question {i}", tags={"difficulty": 2 + i % 4}), ())  # 2, 3, 4 or 5


def ask(n: int, state: dict[str, Any], done: list[list[RolloutGroup]] | None = None, **more: Any) -> Any:
    logged = dict[str, float]()
    given: dict[str, Any] = {"rollouts": 4, "finished_rounds": done or [], "source": SOURCE, "seed": 0, **more}
    requests, after = adaptive_level(n=n, log_metrics=logged.update, state=state, **given)
    return [int(r.task.tags["difficulty"]) for r in requests], after, logged


def answered(*rewards: float | None) -> list[list[RolloutGroup]]:
    return [[single_turn_group([(1,)] * len(rewards), rewards)]]


@pytest.mark.parametrize(
    ("rewards", "level", "band"),
    [
        ((1.0, 1.0, 1.0, 0.0), 3.5, 0.0),  # 0.75 is above 0.7
        ((1.0, 1.0, 0.0, 0.0), 3.0, 1.0),
        ((1.0, 0.0, 0.0, 0.0), 2.5, 0.0),  # 0.25 is below 0.3
        ((1.0, None, None, None), 3.5, 0.0),  # what is unknown does not count
    ],
)
def test_the_level_follows_the_share_of_right_answers(rewards, level, band):
    requests, after, logged = ask(4, {"level": 3.0, "range": [2, 5], "next": 9}, answered(*rewards))
    assert not requests and after["level"] == level and after["next"] == 9
    assert logged["in_band"] == band


def test_the_level_stays_where_it_is_told_to_and_within_what_there_is():
    state = {"level": 5.0, "range": [2, 5], "next": 9}
    assert ask(4, state, answered(1.0, 1.0))[1]["level"] == 5.0, "there is nothing harder"
    assert ask(4, state, answered(0.0, 0.0), gain=4.0)[1]["level"] == 2.0, "nor easier"
    assert ask(4, state, answered(None))[1]["level"] == 5.0
    assert ask(4, {**state, "level": 4.0}, answered(1.0, 0.0), gate_low=0.6, gate_high=0.8)[1]["level"] == 3.5
    assert ask(4, {**state, "level": 4.0}, answered(1.0, 0.0), gate_low=0.1, gate_high=0.4)[1]["level"] == 4.5
    assert of("reasoning_core", adaptive=False, gain=0.5).stage.select.args["gain"] == 0.0


def test_a_level_between_two_is_a_mixture_of_both():
    drawn, after, logged = ask(400, FRESH, level=1.25)  # 2 is the easiest, so 3.25
    shares = {d: c / 400 for d, c in Counter(drawn).items()}
    assert shares == pytest.approx({3: 0.75, 4: 0.25}, abs=0.06)
    assert after["level"] == 3.25 and after["range"] == [2, 5] and logged["level"] == 1.25
    assert logged["difficulty"] == pytest.approx(3.25, abs=0.06)
    assert set(ask(20, FRESH)[0]) == {2} and set(ask(20, FRESH, level=99.0)[0]) == {5}
    again, later, _ = ask(5, after)
    assert later["next"] > after["next"] and len(again) == 5, "none comes twice"


def test_a_task_without_levels_is_refused():
    with pytest.raises(BadValue, match="a task of t has no tag difficulty"):
        ask(4, FRESH, source=TaskSource("t", lambda i: Task(f"q{i}", "?"), ()))
    gap = TaskSource("t", lambda i: Task(f"q{i}", "?", tags={"difficulty": 9 * (i % 2)}), ())
    with pytest.raises(BadValue, match="no task near difficulty 4"):
        ask(1, FRESH, source=gap, level=4.0)
