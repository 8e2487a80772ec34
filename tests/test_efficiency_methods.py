"""LASER-D and RoRecomp by hand: targets that follow the policy, batches put together anew; their reductions to GRPO."""

from __future__ import annotations

import asyncio
import doctest
import math
from typing import Any

import numpy as np
import pytest
from conftest import said_group
from hypothesis import given
from hypothesis import strategies as st
from test_battery import Study, groups_of, same_gradient
from test_loop import advance, bandit, loop_of

from selfteach.core import BadValue, Group, Part, Score, registry
from selfteach.core.part import first_state
from selfteach.core.protocols import History
from selfteach.core.scoring import score
from selfteach.core.tree import Trajectory
from selfteach.credit import each, norm, recompose
from selfteach.loop.account import account
from selfteach.objective import cosine, sequence_mean
from selfteach.reward import length
from selfteach.reward.length import adapted, difficulty, fewest_right, short_enough, tokens_of


def of(name: str, **knobs: Any) -> Any:
    return registry.methods.get(name)(**knobs)


# ---- targets


def test_the_examples_in_the_docstrings_are_true():
    found = doctest.testmod(length)
    assert found.attempted and not found.failed


def test_classes_and_the_fewest_right_answers_of_each():
    assert [difficulty(a) for a in (0.0, 0.3, 1 / 3, 0.5, 2 / 3, 1.0)] == ["hard", "hard", "medium", "medium", "easy", "easy"]
    # of 8 rollouts: floor(8/3) = 2, floor(16/3) = 5; a hard prompt has one at the least; of 2 rollouts floor(2/3) = 0 becomes 1
    assert [fewest_right(c, 8) for c in ("hard", "medium", "easy")] == [1, 2, 5]
    assert [fewest_right(c, 2) for c in ("hard", "medium", "easy")] == [1, 1, 1]


def test_a_target_is_the_shortest_at_which_one_right_answer_is_expected():
    lengths = [12, 13, 20, 30, 40]
    assert adapted(lengths, 1, 8, 1) == 40  # P must be 1
    assert adapted(lengths, 2, 8, 1) == 20  # P >= 1/2: three of five
    assert adapted(lengths, 5, 8, 1) == 12  # P >= 1/5: one of five
    assert adapted(lengths, 5, 8, 8) == 16 and adapted(lengths, 5, 14, 8) == 14  # rounded up to the grid, which begins at `least`
    assert adapted([], 5, 8, 1) is None


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 8), st.integers(1, 20), st.integers(1, 7))
def test_no_shorter_target_of_the_grid_would_do(lengths, right, least, grid):
    found = adapted(lengths, right, least, grid)
    expected = lambda l: sum(x <= l for x in lengths) / len(lengths) * right  # noqa: E731
    assert found is not None and (found - least) % grid == 0
    assert expected(found) >= 1 - 1e-9
    assert found == least or expected(found - grid) < 1 - 1e-9


class Reader:
    def text(self, at: Any) -> str:
        return at.episode


RIGHT = {f"train/0/0/{key}/{n}": value for key, values in {"e": (1, 1, 1, 0), "h": (1, 0, 0, 0)}.items() for n, value in enumerate(values)}


def rewarded(part: Part, groups: list[Group], state: Any) -> tuple[dict[str, float | None], Any, list[Score]]:
    cell = [state]
    found = asyncio.run(score(part, groups, Reader(), 5.0, state=cell))["reward"]
    return {at.episode: s.value for at, s in found.items()}, cell[0], list(found.values())


def told(*, text: str) -> Score:
    value = RIGHT[text]
    return Score(None if value is None else float(value))


def two_groups() -> list[Group]:
    """An easy prompt (right answers of 2, 4 and 9 tokens, a wrong one of 9) and a hard one (right with 8 tokens, wrong with 3, 3 and 9)."""
    said = lambda sizes, key: said_group([(5,) * n for n in sizes], [0.0] * len(sizes), key)  # noqa: E731
    return [said((2, 4, 9, 9), "e"), said((8, 3, 3, 9), "h")]


def test_each_class_has_a_target_of_its_own_which_is_kept_until_the_next_time():
    part = short_enough(reward=Part(told), every=2, least=1, grid=1)
    paid, state, scores = rewarded(part, two_groups(), first_state(part))
    # easy: 4 rollouts have floor(8/3) = 2 right at least, so half of (2, 4, 9) must be within: 4. hard: all of (8): 8.
    assert state["targets"] == {"hard": 8, "medium": None, "easy": 4}
    assert list(paid.values()) == [1.5, 1.5, 1.0, 0.0, 1.5, 0.0, 0.0, 0.0]
    assert scores[0].parts == {"short": 1.0, "target/easy": 4.0} and scores[4].parts["target/hard"] == 8.0
    shorter = [said_group([(5,) * n for n in (1, 1, 1, 9)], [0.0] * 4, "e")]
    _, state, _ = rewarded(part, shorter, state)
    assert state["targets"]["easy"] == 4 and state["lengths"]["easy"] == [1, 1, 1]  # the second step only gathers
    _, state, _ = rewarded(part, shorter, state)
    assert state["targets"] == {"hard": None, "medium": None, "easy": 1} and not any(state["lengths"].values())


def test_the_first_answers_of_all_are_judged_by_what_they_show():
    part = short_enough(reward=Part(told), every=20, least=1, grid=1, bonus=0.25)
    paid, _, _ = rewarded(part, two_groups()[:1], first_state(part))
    assert list(paid.values()) == [1.25, 1.25, 1.0, 0.0]


def test_a_fixed_target_and_the_bonus_for_exploring():
    fixed = short_enough(reward=Part(told), target=3)
    assert list(rewarded(fixed, two_groups(), first_state(fixed))[0].values()) == [1.5, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    part = short_enough(reward=Part(told), target=3, explore=True)
    assert list(rewarded(part, two_groups(), first_state(part))[0].values()) == [1.5, 1.0, 1.0, 0.5, 1.0, 0.0, 0.0, 0.5]


def test_what_is_unknown_stays_so_and_counts_in_no_accuracy(monkeypatch):
    monkeypatch.setitem(RIGHT, "train/0/0/e/2", None)
    monkeypatch.setitem(RIGHT, "train/0/0/e/3", None)
    part = short_enough(reward=Part(told), every=1, least=1, grid=1)
    paid, state, _ = rewarded(part, two_groups()[:1], first_state(part))
    assert list(paid.values()) == [1.5, 1.5, None, None] and state["targets"]["easy"] == 4  # 2 of 2; one right at the least: 4


def test_length_is_what_the_policy_chose():
    group = said_group([(5, 5, 5)], [1.0])
    episode = group.episodes[0]
    more = episode.tree.add(episode.trajectories[0].leaf.node, (7, 7), span="information")
    last = episode.tree.add(more, (8,), chosen=True, logp=np.zeros(1), version=0)
    leaf = episode.trajectories[0].leaf._replace(node=last)
    assert tokens_of(episode, Trajectory(leaf, "policy", "k")) == 4


def test_mistakes_are_named():
    for part, what in ((short_enough(), "needs reward="), (short_enough(reward=Part(told), every=0), "at least 1")):
        _, _, scores = rewarded(part, two_groups(), first_state(part))
        assert all(what in (s.error or "") for s in scores)
    with pytest.raises(BadValue, match="tokens or turns"):
        recompose(groups=[], history=History(), state={"store": [], "owed": 0.0}, by="lines")


def test_targets_are_logged_and_kept_with_the_run(letters):
    evens = registry.blocks.get("evens")
    method = bandit().but(reward=(short_enough(reward=evens(), every=2, least=1, grid=1, right=0.5),))
    loop = loop_of(method, letters)
    metrics = advance(loop, 3)
    assert any(k.startswith("reward/target/") for k in metrics[0]) and "reward/short" in metrics[0]
    assert loop.state.blocks["main/reward.0"]["steps"] == 3


# ---- batches put together anew


def ranked() -> Group:
    """Right answers of 5, 2 and 3 tokens, wrong ones of 4, 6 and 1."""
    return said_group([(5,) * n for n in (5, 2, 3, 4, 6, 1)], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0])


EMPTY: dict[str, Any] = {"store": [], "owed": 0.0}


def number(example: Any) -> int:
    return int(example.name.split(":")[0][-1])


def test_the_short_right_and_the_long_wrong_come_first():
    group = ranked()
    made, state = recompose(groups=[group], history=History(), state=EMPTY, credit=norm())
    # ceil(3/2) = 2 of each: right with 2 and 3 tokens (numbers 1, 2), wrong with 6 and 4 (4, 3); the rest waits: 0 and 5
    assert [number(e) for e in made] == [1, 2, 3, 4]
    assert [int(e["name"].split(":")[0][-1]) for e in state["store"]] == [0, 5]
    # advantages of the whole group of six, before it was divided: mean 1/2, std over n - 1 sqrt(6/4/5) = sqrt(0.3)
    assert [float(e.given["adv"][1]) for e in made] == pytest.approx([0.5 / math.sqrt(0.3), 0.5 / math.sqrt(0.3), *[-0.5 / math.sqrt(0.3)] * 2], 1e-5)
    assert account([group], made) == {"sampled": 21, "learned": 15, "dropped/uncomposed": 6}


def test_the_rest_comes_back_in_order_with_its_advantage_as_a_stream_of_its_own():
    state = EMPTY
    for step in range(2):
        made, state = recompose(groups=[renamed(ranked(), step)], history=History(step=step), state=state, capacity=4, take=3)
        assert all(p.learn in ("main", None) for e in made for p in e.parts)
    assert len(state["store"]) == 4
    made, state = recompose(groups=[], history=History(step=2), state=state, capacity=4, take=3)
    assert [e.name for e in made] == ["train/0/0/s0/0:1", "train/0/0/s0/5:1", "train/0/0/s1/0:1"]  # first in, first out
    assert {p.learn for e in made for p in e.parts} == {"comp", None} and len(state["store"]) == 1
    assert [float(e.given["adv"][1]) > 0 for e in made] == [True, False, True]
    made, state = recompose(groups=[], history=History(step=3), state=state, capacity=4, take=3)
    assert made == [] and len(state["store"]) == 1


def renamed(group: Group, step: int) -> Group:
    return said_group([(5,) * n for n in (5, 2, 3, 4, 6, 1)], [s.value for s in group.scores["reward"].values()], f"s{step}")


def test_compensation_grows_rare_with_its_schedule():
    full = [{**e} for e in recompose(groups=[ranked()], history=History(), state=EMPTY)[1]["store"]]
    back = []
    state = {"store": full * 20, "owed": 0.0}
    for step in range(8):
        made, state = recompose(groups=[], history=History(step=step), state=state, capacity=2, take=1, often=cosine(steps=8))
        back.append(len(made))
    # cosine over 8 steps: 1, .96, .85, .69, .5, .31, .15, .04, saved up: 1 | .96 | 1.81 -> 1 (held at 1) | .69 | 1.19 -> 1 | .31 | .46 | .5
    assert back == [1, 0, 1, 0, 1, 0, 0, 0]
    made, state = recompose(groups=[], history=History(), state={"store": full, "owed": 0.0}, capacity=2, often=0.0)
    assert made == []


def test_the_store_forgets_the_oldest_and_what_teaches_nothing():
    flat = said_group([(5,) * n for n in (5, 2, 3)], [1.0, 1.0, 1.0])
    made, state = recompose(groups=[flat], history=History(), state=EMPTY)
    assert len(made) == 2 and state["store"] == []
    for step in range(5):
        _, state = recompose(groups=[renamed(ranked(), step)], history=History(), state=state, capacity=3, take=2, often=0.0)
    assert [e["name"].split("/")[3] for e in state["store"]] == ["s2", "s3", "s3", "s4", "s4"]


def test_length_may_be_counted_in_turns():
    many = said_group([(5,), (5, 5, 5)], [1.0, 1.0])
    episode = many.episodes[0]
    last = episode.tree.add(episode.trajectories[0].leaf.node, (6,), chosen=True, logp=np.zeros(1), version=0)
    leaf = episode.trajectories[0].leaf._replace(node=last)
    episode.trajectories = [Trajectory(leaf, "policy", "k")]
    scores = {leaf: Score(1.0), many.episodes[1].trajectories[0].leaf: Score(1.0)}
    group = many._replace(scores={"reward": scores})
    by = lambda what: [number(e) for e in recompose(groups=[group], history=History(), state=EMPTY, by=what)[0]]  # noqa: E731
    assert by("tokens") == [0] and by("turns") == [1]


def test_all_of_it_first_is_grpo_to_the_last_bit():
    same_gradient(Study(of("rorecomp", share=1.0).but(updates=of("grpo").stage.updates), groups_of()), Study(of("grpo"), groups_of()), 0.0)
    made, state = recompose(groups=groups_of(), history=History(), state=EMPTY, share=1.0)
    assert [e.name for e in made] == [e.name for e in each(groups=groups_of())] and state["store"] == []


def test_half_of_it_has_another_gradient_and_the_advantages_of_the_whole():
    half, whole = Study(of("rorecomp"), groups_of()), Study(of("grpo"), groups_of())
    with pytest.raises(AssertionError):
        same_gradient(half, whole)
    theirs = dict(zip(whole.batch.names, whole.batch.get("adv", "seq"), strict=True))
    assert all(theirs[n] == a for n, a in zip(half.batch.names, half.batch.get("adv", "seq"), strict=True))


def test_a_compensation_is_learned_in_an_update_of_its_own(letters):
    method = of("rorecomp", groups=3, rollouts=4, capacity=4, take=4, decay=50)
    assert str(method.stage.updates[0].terms[0].weigh) == str(sequence_mean())
    loop = loop_of(method.but(reward=(registry.blocks.get("evens")(),)), letters)
    log: dict[str, Any] = {}
    loop.find = log.__getitem__

    async def steps(n: int) -> list[dict[str, Any]]:
        out = []
        for _ in range(n):
            metrics, groups, _ = await loop.advance()
            log.update({e.id: e.tree for g in groups for e in g.episodes})
            out.append(metrics)
        return out

    metrics = asyncio.run(steps(4))
    assert "1/grad_norm" not in metrics[0] and any("1/grad_norm" in m for m in metrics[1:])
    for m in metrics:
        assert m["tokens/sampled"] == m["tokens/learned"] + sum(v for k, v in m.items() if k.startswith("dropped/"))
