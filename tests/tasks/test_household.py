"""The household and twenty questions: what they answer, how far it is to the goal, what demonstrations show."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import numpy as np
import pytest
from support.episodes import full_text, scripted_context

from selfteach.core import BadValue, RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.credit.composers import per_trajectory
from selfteach.loop.episode import play
from selfteach.reward.payoff import episode_return
from selfteach.rollout.act import act
from selfteach.rollout.single import read
from selfteach.tasks.household import household
from selfteach.tasks.twenty_questions import twenty_questions
from selfteach.tools.environment import environment
from selfteach.tools.household import CONTAINERS, KEY, THINGS, TREATMENTS, Household, World
from selfteach.tools.twenty_questions import OBJECTS, PROPERTIES, TwentyQuestions, table, turns_needed

WORLD = World(
    thing="cup",
    treatment="wash",
    target="box",
    room={"drawer": "kitchen", "box": "hall", "chest": "kitchen"},
    inside={"drawer": ("cup",), "box": (), "chest": ("key",)},
    locked="box",
    start="bath",
)


def begun(world: World = WORLD, **tags: Any) -> Household:
    """A household in a given world."""
    env = Household()
    env.reset(Task("t", "", tags={"seed": 0, "thing": "cup", "treatment": "", "target": "box", **tags}))
    env.world, env.room, env.visited = world, world.start, {world.start}
    env.inside = {c: list(x) for c, x in world.inside.items()}
    env.left = env.remaining()
    return env


def test_an_episode_by_hand():
    env = begun()
    assert env.sight() == "in bath see nothing" and env.remaining() == 10
    said = [
        *(
            "take cup",
            "go kitchen",
            "explore open drawer",
            "take cup",
            "go hall",
            "put box",
            "open box",
            "reflect go kitchen",
        ),
        *("open chest", "take key", "go bath", "wash", "go hall", "open box", "put box"),
    ]
    answers = [env.step(s) for s in said]
    assert [a for a, _, _ in answers] == [
        *("no", "in kitchen see drawer chest", "in drawer cup", "have cup", "in hall see box", "no", "locked"),
        *("in kitchen see drawer chest", "in chest key", "have key", "in bath see nothing", "done", "in hall see box"),
        *("in box nothing", "done"),
    ]
    assert [r for _, r, _ in answers] == [0.0] * 14 + [1.0] and [d for *_, d in answers] == [False] * 14 + [True]


def test_what_is_noted_of_a_turn():
    env, noted = begun(), list[tuple[float, ...]]()
    for said in ("go kitchen", "wash", "wash", "plan open drawer", "go hall", "quit"):
        env.step(said)
        noted.append(tuple(env.notes().values()))
    # executable, repeated, progress: 10 -> 9, 9, 9, 8 -> 9 away from the kitchen, and the end loses all that was left
    assert noted == [(1, 0, 1), (0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 0, -1), (1, 0, -9)]


def state(env: Household) -> tuple[Any, ...]:
    held = tuple(tuple(sorted(env.inside[c])) for c in CONTAINERS)
    return env.room, frozenset(env.open), frozenset(env.carried), env.treated, held


def shortest(env: Household) -> int:
    """The length of the shortest plan by a search over all actions that matter."""
    frontier, seen, depth = [env], {state(env)}, 0
    while frontier:
        after = list[Household]()
        for e in frontier:
            if e.remaining() == 0:
                return depth
            for action in e.actions():
                if action == "look" or (action.startswith("take") and action[5:] not in (e.world.thing, KEY)):
                    continue
                other = copy.copy(e)
                other.open, other.carried, other.visited = set(e.open), list(e.carried), set(e.visited)
                other.inside = {c: list(x) for c, x in e.inside.items()}
                other._carry_out(action)
                if state(other) not in seen:
                    seen.add(state(other))
                    after.append(other)
        frontier, depth = after, depth + 1
    raise AssertionError("there is no plan")


@pytest.mark.parametrize("seed", range(6))
def test_the_remaining_length_is_that_of_the_shortest_plan(seed: int):
    draw = np.random.default_rng(seed)
    treatment = ("", *TREATMENTS)[seed % 4]
    env = begun(World.draw(draw, THINGS[seed % 6], treatment, CONTAINERS[seed % 3], locked=1.0))
    for _ in range(4):
        assert env.remaining() == shortest(env)
        options = env.actions()
        env.step(options[int(draw.integers(len(options)))])


def test_the_expert_gets_there_and_sees_only_what_was_shown():
    source = household(ways=(1.0, 0.0, 0.0, 0.0), locked=0.5, max_turns=20)
    assert source.demos is not None
    demos = [source.demos(i) for i in range(60)]
    assert all(d.tags["success"] == 1 and len(d.data) == 2 * len(d.tags["ways"]) - 1 for d in demos)
    assert any("locked\n" in d.data for d in demos)


def test_what_training_never_asks():
    source = household()
    train = {(t.tags["thing"], t.tags["treatment"]) for t in map(source.train, range(400))}
    unseen = {(t.tags["thing"], t.tags["treatment"]) for t in source.test if t.tags["split"] == "unseen"}
    assert len(source.test) == 400 and sum(t.tags["split"] == "unseen" for t in source.test) == 200
    assert unseen and not unseen & train and {x for x, _ in unseen} <= {x for x, _ in train}
    assert {t.tags["seed"] % 2 for t in source.test} == {1} and source.train(3).tags["seed"] % 2 == 0


def test_an_action_may_slip_and_the_same_episode_slips_again():
    def slipped(slips: float) -> list[bool]:
        env = begun(slips=slips)
        return [env.step("look")[0] == "no" for _ in range(40)]

    assert not any(slipped(0.0)) and slipped(0.5) == slipped(0.5) and 5 < sum(slipped(0.5)) < 35


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ways": (0.5, 0.5)}, "ways must be 4 shares"),
        ({"ways": (0.5, 0.5, 0.5, 0.5)}, "ways must sum to 1"),
        ({"slips": 2.0}, "slips must be a share"),
        ({"max_turns": 99}, "max_turns"),
    ],
)
def test_wrong_options(options: dict[str, Any], says: str):
    with pytest.raises(BadValue, match=says):
        household(**options)


def test_a_demonstration_is_learned_but_for_what_was_seen(tags):
    task = Task("t", "goal\n", data=("go hall\n", "in hall\n", "look\n"))
    context = scripted_context(read(), [], tags)
    (group,) = asyncio.run(play(context, [RolloutRequest(task, 1)]))
    (episode,) = group.episodes
    assert full_text(episode, tags).startswith("goal\ngo hall\nin hall\nlook\n")
    tree = episode.tree
    assert tags.decode(tree.id[tree.action_mask]).startswith("go hall\nlook\n")


def test_turns_of_an_environment_are_columns(tags):
    tools = {"environment": environment(make=Household, name="household")()}
    context = scripted_context(act(max_turns=3), ["go kitchen\n", "go kitchen\n", "quit\n"], tags, tools=tools)
    task = Task("t", "play.\n", tags={"seed": 3, "thing": "cup", "treatment": "", "target": "box"})
    (group,) = asyncio.run(play(context, [RolloutRequest(task, 1)]))
    group.scores.update(asyncio.run(score(episode_return(), [group], context)))
    ((reward,),) = [list(group.scores["reward"].values())]
    assert reward.parts["repeated"] == pytest.approx(1 / 3) and reward.parts["success"] == 0
    (example,) = per_trajectory(groups=[group])
    assert {n: example.given[n][0] for n in ("executable", "repeated", "progress")} == dict.fromkeys(
        ("executable", "repeated", "progress"), "step"
    )
    assert np.asarray(example.given["repeated"][1]).tolist() == [0, 1, 0]


def test_twenty_questions_by_hand():
    env = TwentyQuestions()
    env.reset(Task("t", "", tags={"object": "cup", "unsure": "red"}))
    of = table(0)
    assert all(len(of[a] ^ of[b]) >= 2 for a in OBJECTS for b in OBJECTS if a < b)
    assert env.step("ask red")[0] == "maybe" and env.notes()["progress"] == 0
    assert env.step("ask big")[0] == ("yes" if "big" in of["cup"] else "no")
    assert env.step("sing")[0] == "what" and env.notes()["executable"] == 0
    left = env.remaining()
    assert env.step("guess cup") == ("yes", 1.0, True) and env.notes()["progress"] == left
    env.reset(Task("t", "", tags={"object": "cup", "unsure": "red"}))
    left = env.remaining()
    assert env.step("guess bell") == ("wrong", 0.0, True) and env.notes()["progress"] == -left


def test_the_turns_that_are_needed():
    assert turns_needed(frozenset({"cup"}), frozenset()) == 1
    pair = frozenset(OBJECTS[:2])
    assert turns_needed(pair, frozenset()) == 2
    assert turns_needed(pair, frozenset(PROPERTIES)) == 16  # nothing is left to ask: no guess is sure
    assert turns_needed(frozenset(OBJECTS), frozenset()) >= 5  # four questions with two answers, and the guess


def test_whoever_asks_well_finds_the_object():
    source = twenty_questions(ways=(1.0, 0.0, 0.0, 0.0))
    assert source.demos is not None and all(source.demos(i).tags["success"] == 1 for i in range(60))
    seen = {(t.tags["object"], t.tags["unsure"]) for t in map(source.train, range(300))}
    assert not seen & {(t.tags["object"], t.tags["unsure"]) for t in source.test if t.tags["split"] == "unseen"}
