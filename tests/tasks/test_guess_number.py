"""Guessing a number: what is answered, what halving needs, and how soon each way comes to it."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

from selfteach.core import BadValue, Task
from selfteach.tasks.guess_number import guess_number
from selfteach.tools.guess_number import LARGEST, GuessNumber


def begun(number: int) -> GuessNumber:
    env = GuessNumber()
    assert env.reset(Task("t", "", tags={"number": number})) == "which number"
    return env


def test_an_episode_by_hand():
    env = begun(9)
    assert env.remaining() == 5  # 31 numbers: 16, 8, 4, 2, 1
    assert env.step("guess 16") == ("lower", 0.0, False)
    assert env.notes() == {"executable": 1, "repeated": 0, "progress": 1}  # fifteen are left
    assert env.step("guess  16") == ("lower", 0.0, False)
    assert env.notes() == {"executable": 1, "repeated": 1, "progress": 0}
    assert env.step("guess 4")[0] == "higher" and (env.low, env.high) == (5, 15)
    for nonsense in ("guess 32", "guess 0", "guess", "guess nine", "guess -9", "ask 9", ""):
        assert env.step(nonsense) == ("what", 0.0, False) and env.notes()["executable"] == 0
    assert env.step("guess 20")[0] == "lower" and env.notes()["progress"] == 0  # as was known
    assert env.step("guess 9") == ("yes", 1.0, True) and env.notes()["progress"] == 4


def test_halving_finds_every_number_in_five_guesses():
    needed = list[int]()
    for number in range(1, LARGEST + 1):
        env, done, turns = begun(number), False, 0
        while not done:
            left = env.remaining()
            _, _, done = env.step(env.expert())
            turns += 1
            assert done or env.remaining() < left
        needed.append(turns)
    # one number in one guess, two in two, four, eight, sixteen in five
    assert sorted(needed) == [n for n in range(1, 6) for _ in range(2 ** (n - 1))]


def turns_of(ways: tuple[float, ...], **options: Any) -> list[int]:
    source = guess_number(ways=ways, **options)
    assert source.demos is not None
    return [len(source.demos(i).tags["ways"]) for i in range(300)]


def test_how_soon_each_way_comes_to_it():
    assert max(turns_of((1.0, 0.0, 0.0, 0.0))) == 5
    # any of what is left: 2 (1 + 1/n) H_n - 3 guesses of n = 31 numbers, as a search in a random tree takes
    harmonic = sum(1 / n for n in range(1, 32))
    assert fmean(turns_of((0.0, 1.0, 0.0, 0.0), max_turns=40)) == pytest.approx(
        2 * (1 + 1 / 31) * harmonic - 3, abs=0.3
    )
    assert fmean(turns_of((0.0, 0.0, 1.0, 0.0), max_turns=40)) == pytest.approx(16, abs=1.6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ways": (0.5, 0.5, 0.5, 0.5)}, "ways"),
        ({"change": 2.0}, "change must be a share"),
        ({"max_turns": 99}, "max_turns"),
        ({"n_test": 0}, "n_test"),
    ],
)
def test_wrong_options(options: dict[str, Any], says: str):
    with pytest.raises(BadValue, match=says):
        guess_number(**options)
