"""Gymnasium and MiniGrid in words: what is observed, which actions a text names, what experts reach."""

from __future__ import annotations

import pytest

from selfteach.cli import main
from selfteach.configuration import task_source
from selfteach.core import BadValue, Task
from selfteach.tools.environment import EnvEpisode
from selfteach.tools.gym_env import last_word

pytest.importorskip("gymnasium", reason="the extra selfteach[gym] is not installed")


def episode(name: str, n: int = 0, **options):
    """(an episode, its first observation) of a task's environment."""
    source = task_source(name, options)
    made = EnvEpisode(source.tools["environment"].args["make"], name)
    return made, made.reset(source.train(n))


def by_expert(name: str, episodes: int = 6, **options) -> tuple[float, float]:
    """(share of successes, mean return) of an environment's expert."""
    good, total = 0, 0.0
    for n in range(episodes):
        made, _ = episode(name, n, **options)
        while not made.done and len(made.rewards) < 60:
            made.step(made.env.expert() or "left")
        total += sum(made.rewards)
        good += made.finish()
    return good / episodes, total / episodes


def test_frozen_lake_reads_as_words():
    made, first = episode("gym", config="is_slippery=false")
    start = "row 0 column 0. goal at row 3 column 3. left edge, down ice, right ice, up edge.\n"
    assert first.endswith(f"say left, down, right or up.\n{start}")
    below = "row 1 column 0. goal at row 3 column 3. left edge, down ice, right hole, up ice.\n"
    assert made.step("I go down.")[:3] == (below, 0, False)
    assert "that is no action" in made.step("fly").observation and not made.done
    assert made.step("right")[1:3] == (0, True)
    assert not made.finish()


@pytest.mark.parametrize(
    ("name", "options", "value"),
    [
        ("gym", {"config": "is_slippery=false"}, 1.0),
        ("gym", {"id": "CliffWalking-v1"}, -13.0),
        ("gym", {"id": "Taxi-v4"}, 5.0),
        ("minigrid", {}, 0.9),
        ("minigrid", {"id": "MiniGrid-LavaGapS5-v0"}, 0.9),
        ("minigrid", {"id": "BabyAI-GoToRedBallGrey-v0"}, 0.8),
    ],
)
def test_experts_reach_the_goal(name, options, value):
    if name == "minigrid":
        pytest.importorskip("minigrid", reason="the extra selfteach[minigrid] is not installed")
    share, mean = by_expert(name, **options)
    assert share == 1.0 and mean >= value


def test_minigrid_says_what_is_seen():
    pytest.importorskip("minigrid", reason="the extra selfteach[minigrid] is not installed")
    made, first = episode("minigrid")
    assert "get to the green goal square" in first
    assert first.endswith("facing east. left wall, right free, 2 free ahead. green goal 2 ahead 2 right.\n")
    turned = made.step("right").observation
    assert turned == "facing south. left free, right wall, 2 free ahead. green goal 2 ahead 2 left.\n"


def test_an_episode_is_a_function_of_its_seed_and_engines_are_used_again():
    source = task_source("gym", {"id": "Taxi-v4"})
    make = source.tools["environment"].args["make"]
    texts = []
    for _ in range(2):
        made = EnvEpisode(make, "taxi")
        texts.append([made.reset(source.train(3)), *(made.step("north").observation for _ in range(3))])
        made.finish()
    assert texts[0] == texts[1] and len(make.free) == 1


def test_other_discrete_environments_read_as_numbers():
    import gymnasium

    class Corridor(gymnasium.Env):
        observation_space = gymnasium.spaces.Dict({"at": gymnasium.spaces.Discrete(5)})
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            self.at = 0
            return {"at": 0}, {}

        def step(self, action):
            self.at += int(action)
            return {"at": self.at}, float(self.at == 4), self.at == 4, False, {}

    gymnasium.register("selfteach/Corridor-v0", Corridor)
    made, first = episode("gym", id="selfteach/Corridor-v0")
    assert first == "selfteach/Corridor-v0. say 0 or 1.\nat 0\n"
    assert [made.step("1").observation for _ in range(4)][-1] == "at 4\n" and made.finish()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("gym --set id=FrozenLak-v1", "did you mean FrozenLake-v1"),
        ("gym --set id=CartPole-v1", "neither discrete nor text"),
        ("gym --set config=slippery=false", "unexpected keyword argument 'slippery'"),
        ("minigrid --set id=Taxi-v4", "is no world of MiniGrid"),
        ("gym --set max_turns=99", "at most 60"),
    ],
)
def test_what_cannot_be_made_is_one_line(words, why, capsys):
    pytest.importorskip("minigrid", reason="the extra selfteach[minigrid] is not installed")
    assert main(f"train grpo --task {words}".split()) == 2
    error = capsys.readouterr().err.strip()
    assert why in error and "\n" not in error


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(BadValue, match=r"task gym: the package gymnasium is not installed; .*selfteach\[gym\]"):
        task_source("gym", {"seed": 91})


def test_the_last_word_that_names_an_action():
    assert last_word("Left, then RIGHT!", ["left", "right"]) == "right"
    assert last_word("lefty", ["left", "right"]) is None
    assert Task("a", "b").tags == {}
