"""RoRecomp by hand: the priority batch, the buffer of the others, and the updates that compensate."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from support.battery import Study, groups_of, of, same_gradient
from support.episodes import single_turn_group
from support.loops import loop_of

from selfteach.core import BadValue, RolloutGroup, Score, registry
from selfteach.core.contexts import History
from selfteach.core.tree import Trajectory
from selfteach.credit import norm, per_trajectory
from selfteach.loop.token_accounting import account
from selfteach.methods.rorecomp import recompose
from selfteach.objective import cosine, sequence_mean


def ranked() -> RolloutGroup:
    """Right answers of 5, 2 and 3 tokens, wrong ones of 4, 6 and 1."""
    return single_turn_group([(5,) * n for n in (5, 2, 3, 4, 6, 1)], [1.0, 1.0, 1.0, 0.0, 0.0, 0.0])


EMPTY: dict[str, Any] = {"store": [], "owed": 0.0}


def number(example: Any) -> int:
    return int(example.name.split(":")[0][-1])


def test_the_priority_batch_is_the_short_right_and_the_long_wrong_answers():
    group = ranked()
    made, state = recompose(groups=[group], history=History(), state=EMPTY, credit=norm())
    # ceil(3/2) = 2 of each: right with 2 and 3 tokens (numbers 1, 2), wrong with 6 and 4 (4, 3); the others are stored:
    # 0 and 5
    assert [number(e) for e in made] == [1, 2, 3, 4]
    assert [int(e["name"].split(":")[0][-1]) for e in state["store"]] == [0, 5]
    # advantages of the whole group of six, before it was divided: mean 1/2, std over n - 1 sqrt(6/4/5) = sqrt(0.3)
    assert [float(e.given["adv"][1]) for e in made] == pytest.approx(
        [0.5 / math.sqrt(0.3), 0.5 / math.sqrt(0.3), *[-0.5 / math.sqrt(0.3)] * 2], 1e-5
    )
    assert account([group], made) == {"sampled": 21, "learned": 15, "dropped/uncomposed": 6}


def test_compensation_replays_the_oldest_with_their_advantages_in_a_stream_of_its_own():
    state = EMPTY
    for step in range(2):
        made, state = recompose(
            groups=[renamed(ranked(), step)], history=History(step=step), state=state, capacity=4, compensation=3
        )
        assert all(p.learn in ("main", None) for e in made for p in e.segments)
    assert len(state["store"]) == 4
    made, state = recompose(groups=[], history=History(step=2), state=state, capacity=4, compensation=3)
    assert [e.name for e in made] == ["train/0/0/s0/0:1", "train/0/0/s0/5:1", "train/0/0/s1/0:1"]  # first in, first out
    assert {p.learn for e in made for p in e.segments} == {"comp", None} and len(state["store"]) == 1
    assert [float(e.given["adv"][1]) > 0 for e in made] == [True, False, True]
    made, state = recompose(groups=[], history=History(step=3), state=state, capacity=4, compensation=3)
    assert made == [] and len(state["store"]) == 1


def renamed(group: RolloutGroup, step: int) -> RolloutGroup:
    return single_turn_group(
        [(5,) * n for n in (5, 2, 3, 4, 6, 1)], [s.value for s in group.scores["reward"].values()], f"s{step}"
    )


def test_compensation_follows_its_schedule():
    full = [{**e} for e in recompose(groups=[ranked()], history=History(), state=EMPTY)[1]["store"]]
    replayed = []
    state = {"store": full * 20, "owed": 0.0}
    for step in range(8):
        made, state = recompose(
            groups=[], history=History(step=step), state=state, capacity=2, compensation=1, rate=cosine(steps=8)
        )
        replayed.append(len(made))
    # cosine over 8 steps: 1, .96, .85, .69, .5, .31, .15, .04, accumulated: 1 | .96 | 1.81 -> 1 (clipped to 1) | .69
    # | 1.19 -> 1 | .31 | .46 | .5
    assert replayed == [1, 0, 1, 0, 1, 0, 0, 0]
    made, state = recompose(groups=[], history=History(), state={"store": full, "owed": 0.0}, capacity=2, rate=0.0)
    assert made == []


def test_the_buffer_drops_the_oldest_and_answers_of_zero_advantage():
    flat = single_turn_group([(5,) * n for n in (5, 2, 3)], [1.0, 1.0, 1.0])
    made, state = recompose(groups=[flat], history=History(), state=EMPTY)
    assert len(made) == 2 and state["store"] == []
    for step in range(5):
        _, state = recompose(
            groups=[renamed(ranked(), step)], history=History(), state=state, capacity=3, compensation=2, rate=0.0
        )
    assert [e["name"].split("/")[3] for e in state["store"]] == ["s2", "s3", "s3", "s4", "s4"]


def test_length_may_be_counted_in_turns():
    many = single_turn_group([(5,), (5, 5, 5)], [1.0, 1.0])
    episode = many.episodes[0]
    last = episode.tree.add(episode.trajectories[0].leaf.node, (6,), action_mask=True, logp=np.zeros(1), version=0)
    leaf = episode.trajectories[0].leaf._replace(node=last)
    episode.trajectories = [Trajectory(leaf, "policy", "k")]
    scores = {leaf: Score(1.0), many.episodes[1].trajectories[0].leaf: Score(1.0)}
    group = many._replace(scores={"reward": scores})
    by = lambda what: [number(e) for e in recompose(groups=[group], history=History(), state=EMPTY, by=what)[0]]  # noqa: E731
    assert by("tokens") == [0] and by("turns") == [1]


def test_share_one_is_grpo_to_the_last_bit():
    same_gradient(
        Study(of("rorecomp", share=1.0).replace(updates=of("grpo").stage.updates), groups_of()),
        Study(of("grpo"), groups_of()),
        0.0,
    )
    made, state = recompose(groups=groups_of(), history=History(), state=EMPTY, share=1.0)
    assert [e.name for e in made] == [e.name for e in per_trajectory(groups=groups_of())] and state["store"] == []


def test_share_one_half_has_another_gradient_and_the_advantages_of_the_whole_group():
    half, whole = Study(of("rorecomp"), groups_of()), Study(of("grpo"), groups_of())
    with pytest.raises(AssertionError):
        same_gradient(half, whole)
    theirs = dict(zip(whole.batch.names, whole.batch.get("adv", "seq"), strict=True))
    assert all(theirs[n] == a for n, a in zip(half.batch.names, half.batch.get("adv", "seq"), strict=True))


def test_a_compensation_batch_is_learned_in_an_update_of_its_own(letters):
    method = of("rorecomp", groups=3, rollouts=4, capacity=4, compensation=4, decay_steps=50)
    assert str(method.stage.updates[0].terms[0].loss_weights) == str(sequence_mean())
    loop = loop_of(method.replace(reward=(registry.blocks.get("evens")(),)), letters)
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
    assert "policy/2/grad_norm" not in metrics[0] and any("policy/2/grad_norm" in m for m in metrics[1:])
    for m in metrics:
        assert m["tokens/sampled"] == m["tokens/learned"] + sum(v for k, v in m.items() if k.startswith("dropped/"))


def test_an_unknown_measure_of_length_is_refused():
    with pytest.raises(BadValue, match="tokens or turns"):
        recompose(groups=[], history=History(), state=EMPTY, by="lines")
