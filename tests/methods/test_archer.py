"""ArCHer: temporal differences of turns and their advantages by hand, what turns are paid, and targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.battery import Study, groups_of, of, same_gradient
from support.episodes import single_turn_group

from selfteach.core import History, Ref, RolloutGroup, Score, collate
from selfteach.credit.composers import per_trajectory
from selfteach.loop.loss_weights import loss_weights
from selfteach.methods.archer import paid, replay_turns, turn_advantage, turn_td

NAN = float("nan")


TURNS = {
    "critic_scalar_after": torch.tensor([9.0, 0.5, 0.5, 0.5]),
    "critic_value": torch.tensor([0.5, 9.0, 1.0, 0.0]),
    "target_value": torch.tensor([9.0, 9.0, 0.8, 9.0]),
    "reward": torch.tensor([1.0, 0.0]),
    "step": torch.tensor([0, 0, 1, 2]),
    "seq": torch.tensor([0, 0, 0, 1]),
}


def test_a_turn_is_worth_what_comes_after_it():
    # Episode 0: turns of two tokens and of one, return 1; episode 1: one turn, return 0. gamma 1/2, Vbar of the second
    # turn 0.8: Q targets 0.4, 1, 0; V targets are Q after each turn: 0.5, 0.5, 0.5.
    # Q = 0.5, 0.5, 0.5: 0.01, 0.25, 0.25; V = 0.5, 1, 0: 0, 0.25, 0.25. A sum for each turn: 0.01, 0.5, 0.5.
    got = turn_td(**TURNS, token_reward=torch.tensor([0.0, 0.0, 1.0, 0.0]), gamma=0.5)
    assert got.tolist() == pytest.approx([0.01, 0.5, 0.5])


def test_what_a_turn_is_paid_is_its_own_reward():
    # Q targets 0.5 + 0.4, 0.5, 0: errors 0.4, 0, 0.5: 0.16, 0, 0.25; and 0, 0.25, 0.25 of V.
    got = turn_td(**TURNS, token_reward=torch.tensor([0.0, 0.5, 0.5, 0.0]), gamma=0.5)
    assert got.tolist() == pytest.approx([0.16, 0.25, 0.5])
    # Returns of 1 and 0: two turns are paid 0.5 each, and nothing is left; the third -0.1, so that its end gets 0.1.
    given = {"reward": [1.0, 0.0], "seq": [0, 0, 0, 1]}
    each = paid(**given, turn_reward=[NAN, 0.5, 0.5, -0.1])["token_reward"].values
    assert each.tolist() == pytest.approx([0.0, 0.5, 0.5, 0.0])
    # Paid 1 at the end: as where only the return is known.
    at_end, none = (paid(**given, turn_reward=own)["token_reward"] for own in ([NAN, 0.0, 1.0, 0.0], [NAN] * 4))
    assert at_end.values.tolist() == none.values.tolist() == [0, 0, 1, 0]


def test_every_turn_weighs_the_same():
    # Three turns in two episodes: a third each, where a mean of each episode first would give a quarter to two of them.
    batch = Study(of("archer"), groups_of(), passes=False).batch
    (term,) = of("archer").stage.updates[0].terms
    w, turns = loss_weights(batch, term), batch.size("step")
    assert turns > batch.size("seq") and w == pytest.approx(np.full(turns, 1 / turns))


def test_micro_batches_do_not_change_the_critics():
    same_gradient(Study(of("archer"), groups_of()), Study(of("archer"), groups_of(), tokens=30))


def paid_group(rewards: list[float], own: list[float], key: str) -> RolloutGroup:
    group = single_turn_group([(5, 6), (7,)], rewards, key=key)
    at = [Ref(e.id, e.trajectories[0].leaf.node) for e in group.episodes]
    group.scores["turn_reward"] = dict(zip(at, map(Score, own), strict=True))
    return group


def test_what_is_replayed_keeps_what_its_turns_were_paid():
    first, second = paid_group([1.0, 0.0], [0.75, 0.0], "a"), single_turn_group([(5,), (6, 7)], [1.0, 1.0], key="b")
    block = replay_turns(size=2, take=1)
    nothing, state = block(groups=[first], state={"groups": []})
    old, state = block(groups=[second], state=state)
    assert not nothing and len(old) == 2 and len(state["groups"]) == 2
    # Beside episodes of which no turn is paid, in one batch: per token, at a turn's last one.
    new = per_trajectory(groups=[second], tokens=("turn_reward",))
    trees = {e.id: e.tree for g in (first, second) for e in g.episodes}
    batch = collate([*new, *old], trees.__getitem__)
    assert batch.get("turn_reward").tolist() == pytest.approx([NAN] * 4 + [0.75, 0.0], nan_ok=True)
    assert [e.key for e in old] == ["a@train/0/0/a/0:1"] * 2


def test_targets_are_the_critics_of_the_step_before():
    method = of("archer")
    assert {n: (w.follow, w.rate) for n, w in method.weights.items() if w.follow} == {
        "critic_target": ("critic", 1.0),
        "critic2_target": ("critic2", 1.0),
    }
    when = method.stage.updates[-1].when
    assert when and [bool(when(history=History(step=n))) for n in (39, 40)] == [False, True]


def test_no_gradient_goes_into_what_is_learned_from():
    q, v, bar = torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    turn_td(
        critic_scalar_after=q,
        critic_value=v,
        target_value=bar,
        token_reward=torch.zeros(2),
        reward=torch.ones(1),
        step=torch.tensor([0, 1]),
        seq=torch.tensor([0, 0]),
    ).sum().backward()
    # Q is 0 in both turns, and 0.95 and 0 its targets; V is 1, and its targets are 0, which V's error does not move.
    assert bar.grad is None and q.grad is not None and v.grad is not None
    assert q.grad.tolist() == pytest.approx([-1.9, 0.0]) and v.grad.tolist() == [2.0, 2.0]


def test_the_advantage_is_of_the_lower_of_two_critics():
    # Q = min(1, 0.8), min(0.2, 0.4) after the turns; V = min(0.5, 0.6), min(0.3, 0.1) before them: 0.3 and 0.1.
    adv = turn_advantage(
        critic_scalar_after=[9.0, 1.0, 0.2],
        critic2_scalar_after=[9.0, 0.8, 0.4],
        critic_value=[0.5, 9.0, 0.3],
        critic2_value=[0.6, 9.0, 0.1],
        step=np.array([0, 0, 1]),
    )["adv"].values
    assert adv == pytest.approx([0.3, 0.3, 0.1])
