"""TextArena's games for one player: a function of their seed, however many are played at once."""

from __future__ import annotations

import random

import pytest

from selfteach.cli import main
from selfteach.configuration import task_source
from selfteach.tools.environment import EnvEpisode

pytest.importorskip("textarena", reason="the extra selfteach[games] is not installed")


def begun(id: str, n: int):
    source = task_source("textarena", {"id": id})
    made = EnvEpisode(source.tools["environment"].args["make"], id)
    return made, made.reset(source.train(n))


def test_the_number_is_found_and_only_what_is_new_is_shown():
    made, first = begun("GuessTheNumber-v0", 0)
    assert "Guess The Number" in first
    low, high = 1, 20
    while not made.done:
        guess = (low + high) // 2
        seen = made.step(f"[{guess}]").observation
        assert "You are playing" not in seen and f"[{guess}]" not in seen
        low, high = (guess + 1, high) if "higher" in seen else (low, guess - 1)
    assert made.rewards[-1] == 1.0 and made.finish()


def test_nonsense_earns_nothing():
    made, _ = begun("GuessTheNumber-v0", 1)
    made.step("[abc]")
    made.step("[abc]")
    assert made.done and made.rewards == [0.0, 0.0] and not made.finish()


def test_games_do_not_change_each_others_randomness():
    def play(beside: bool) -> list[str]:
        made, first = begun("2048-v0", 5)
        other = begun("2048-v0", 6)[0] if beside else None
        texts = [first]
        for move in ("[up]", "[left]", "[down]", "[right]") * 2:
            texts.append(made.step(move).observation)
            if other is not None:
                other.step(move)
        return texts

    before = random.getstate()
    assert play(False) == play(True) and random.getstate() == before


@pytest.mark.parametrize(
    ("id", "why"), [("GuesTheNumber-v0", "did you mean GuessTheNumber-v0"), ("Nim-v0", "is not for one player")]
)
def test_a_game_that_cannot_be_had_is_one_line(id, why, capsys):
    assert main(["train", "grpo", "--task", "textarena", "--set", f"id={id}"]) == 2
    error = capsys.readouterr().err.strip()
    assert why in error and "\n" not in error
