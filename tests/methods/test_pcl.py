"""PCL: which prompts are selected, and that the value model learns the predicted quantity."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from support.curriculum import answered, asked, source
from support.episodes import single_turn_group
from support.models import mini

from selfteach.core import BadValue, History, collate, registry
from selfteach.credit.composers import per_trajectory
from selfteach.curriculum.select import first_task_index
from selfteach.loop import assemble
from selfteach.loop.metrics_history import summary
from selfteach.methods.pcl import first_rows, group_mean, nearest_predicted
from selfteach.model.catalog import StartModel
from selfteach.objective.value import success_loss


def test_the_prompts_of_predicted_success_nearest_the_target_are_selected():
    select = nearest_predicted(candidates=2)
    first, state, _ = asked(select, [], {"next": 0, "predicted": {}}, n=2)
    assert [(r.program, r.n) for r in first] == [("predict", 1)] * 4 and state["next"] == 4
    back = [answered(r, [None], answer=p) for r, p in zip(first, (0.9, 0.45, 0.1, 0.6), strict=True)]
    then, state, metrics = asked(select, [back], state, n=2)
    assert [r.task.id for r in then] == [first[1].task.id, first[3].task.id] and [r.n for r in then] == [4, 4]
    assert metrics["predicted"] == pytest.approx(0.525) and "off" not in metrics
    assert asked(select, [back, back], state)[0] == []
    # the step after: predictions 0.45 and 0.6 against 0.25 and 1.0 are off by (0.2 + 0.4) / 2
    history = History(tasks={then[0].task.id: {"reward": 0.25}, then[1].task.id: {"reward": 1.0}})
    metrics = asked(select, [back], state, n=2, history=history)[2]
    assert metrics["off"] == pytest.approx(0.3)
    back[2].episodes[0].answer = None
    with pytest.raises(BadValue, match="gave no number for task"):
        asked(select, [back], state, n=2)


def test_the_value_target_is_the_success_rate_at_the_prompts_last_token():
    groups = [
        single_turn_group([(5, 6), (7,)], [1.0, 0.0], key="a"),
        single_turn_group([(8,), (9, 9, 9)], [1.0, 1.0], key="b"),
    ]
    batch = collate(per_trajectory()(groups=groups), {e.id: e.tree for g in groups for e in g.episodes}.__getitem__)
    target = group_mean(reward=batch.get("reward", "seq"), group=batch.get("group", "seq"))["target"].values
    assert target.tolist() == [0.5, 0.5, 1.0, 1.0]
    rows = first_rows(seq=batch.get("seq"))
    assert rows.tolist() == [True, False, True, True, True, False, False]
    assert (batch.take(rows).get("pos") == 3).all(), "each row is the first after the prompt of three tokens"
    # sigmoid(log 3) = 3/4: (3/4 - 1/2)^2
    assert float(success_loss(critic_value=torch.log(torch.tensor(3.0)), target=torch.tensor(0.5))) == pytest.approx(
        0.0625
    )
    value = registry.methods.get("pcl")().stage.updates[0]
    assert value.params == ("critic",) and str(value.where) == "first_rows()"


def test_the_prediction_is_the_value_that_the_update_trains(letters):
    """The number of the first round is the sigmoid of the value that the update reads, with the same weights."""
    method = registry.methods.get("pcl")(groups=2, rollouts=2, candidates=2, critic_lr=0.05)
    loop = assemble.loop(
        method, source(), StartModel(mini(264), letters, False, {}), assemble.RunSettings(steps=9, max_tokens=3)
    )
    means = []
    for _ in range(2):
        asyncio.run(loop.advance())
        rollouts = asyncio.run(loop._rollouts(method.stage))
        table, groups = rollouts.context, rollouts.groups
        predicted = {g.request.task.id: g.episodes[0].answer for g in groups if g.request.program == "predict"}
        batch = loop._compose(method.stage, table, groups).batch
        loop.learner.forward(batch, ["critic_value"])
        rows = first_rows(seq=batch.get("seq"))
        value = batch.get("critic_value")[rows]
        assert [predicted[t] for t in batch.get("task")[rows]] == pytest.approx(1 / (1 + np.exp(-value)), abs=1e-5)
        metrics = summary(groups)
        assert len(predicted) == 4 and metrics["rollout/groups"] == 2 and metrics["rollout/episodes"] == 4
        means.append(value.mean())
    assert means[0] != means[1], "it learned nothing"


def test_four_times_as_many_tasks_are_predicted_and_the_next_step_goes_on_behind_them():
    select, first_index = nearest_predicted(), first_task_index(0)
    first, state, _ = asked(select, [], {"next": 0, "predicted": {}}, n=2)
    assert [r.task.id for r in first] == [f"t{first_index + i}" for i in range(8)] and state["next"] == 8
    later, state, _ = asked(select, [], state, n=2)
    assert [r.task.id for r in later] == [f"t{first_index + 8 + i}" for i in range(8)] and state["next"] == 16
    back = [
        answered(r, [None], answer=p) for r, p in zip(first, (0.0, 1.0, 0.4, 0.61, 0.2, 0.8, 0.3, 0.9), strict=True)
    ]
    then, _, _ = asked(select, [back], state, n=2)
    assert [r.task.id for r in then] == [first[2].task.id, first[3].task.id]  # 0.1 and 0.11 off a half
