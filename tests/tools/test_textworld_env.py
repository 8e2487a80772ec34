"""TextWorld's adventures: made once, won by their own policy."""

from __future__ import annotations

import pytest

from selfteach.configuration import task_source
from selfteach.core import BadValue
from selfteach.tools.environment import EnvEpisode
from selfteach.tools.textworld_env import words_of


def test_a_prompt_is_no_part_of_what_a_game_says():
    assert words_of("\nTaken.\n\n\n>   -= Attic =-0/2") == "Taken."


def test_a_game_is_made_once_and_won_by_its_policy():
    pytest.importorskip("textworld", reason="the extra selfteach[textworld] is not installed")
    source = task_source("textworld", {"games": 1, "test_games": 1, "noise": 0.0})
    made = EnvEpisode(source.tools["environment"].args["make"], "textworld")
    first = made.reset(source.test[0])
    assert "-=" in first and first != EnvEpisode(made.env.maker, "b").reset(source.train(0))  # another game
    while not made.done:
        made.step(made.env.expert() or "look")
    assert sum(made.rewards) == 1.0 and made.finish()
    assert source.demos is not None and source.demos(0).data[0].endswith("\n")


def test_options_out_of_range_are_refused():
    with pytest.raises(BadValue, match="rooms must be a whole number of at least 1"):
        task_source("textworld", {"rooms": 0})
