"""Guide: which prompts get a hint, the advantage of failed and guided rollouts together, and the ratio."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.curriculum import answered, asked
from support.episodes import scripted_context, single_turn_group
from support.models import mini

from selfteach.core import RolloutRequest, Score, Task, collate, registry
from selfteach.credit.advantages import norm
from selfteach.credit.composers import per_trajectory
from selfteach.loop import assemble
from selfteach.loop.episode import play
from selfteach.loop.metrics_history import summary
from selfteach.loop.safety import logprob_mismatch
from selfteach.methods.guide import hint_failures
from selfteach.model.attention import causal_attention
from selfteach.model.catalog import StartModel
from selfteach.objective.policy import clipped_ratio
from selfteach.rollout.single import single


def test_only_what_failed_altogether_is_asked_again_with_a_hint():
    part = hint_failures()
    first, state, _ = asked(part, [], 0, n=3)
    assert all(not r.help for r in first) and state == 3
    back = [answered(r, rewards) for r, rewards in zip(first, ([0.0, 0.0], [0.0, 1.0], [0.0, 0.0]), strict=True)]
    then, state, told = asked(part, [back], state, n=3)
    assert [(r.task.id, r.key, r.n) for r in then] == [(first[i].task.id, back[i].key, 4) for i in (0, 2)]
    assert {r.help["hint"] for r in then} == {" 1 + 1 = 2. 2 + 1 = 3.\n"} and told == {"guided": 2 / 3, "failed": 2 / 3}
    done, _, told = asked(part, [back, [answered(then[0], [1.0, 0.0]), answered(then[1], [0.0, 0.0])]], state, n=3)
    assert done == [] and told == {"opened": 0.25}


def test_failed_and_guided_answers_are_one_group():
    plain = single_turn_group([(5,)] * 4, [0.0] * 4, key="k")
    guided = single_turn_group([(6,)] * 4, [1.0, 0.0, 0.0, 0.0], key="k")
    episodes = [replace_id(e, f"g{i}") for i, e in enumerate(guided.episodes)]
    scores = dict(zip([e.trajectories[0].leaf for e in episodes], guided.scores["reward"].values(), strict=True))
    both = [plain, guided._replace(episodes=episodes, scores={"reward": scores})]
    batch = collate(per_trajectory()(groups=both), {e.id: e.tree for g in both for e in g.episodes}.__getitem__)
    adv = norm(eps=0.0)(reward=batch.get("reward", "seq"), group=batch.get("group", "seq"))["adv"].values
    # mean 1/8, variance (7/64 + 49/64) / 7 = 1/8: 7/8 and -1/8 over sqrt(1/8); without the hint all eight would be 0
    assert adv == pytest.approx([-0.35355] * 4 + [2.47487] + [-0.35355] * 3, abs=1e-5)
    assert (
        summary(both)["rollout/mixed_group_fraction"] == 1.0
        and summary(both)["rollout/groups"] == 1
        and summary([plain])["rollout/mixed_group_fraction"] == 0.0
    )
    alone = [
        single_turn_group([(5,)] * 2, [1.0, 1.0], key="two"),
        single_turn_group([(5,)] * 6, [1.0] * 5 + [0.0], key="six"),
    ]
    assert (summary(alone)["rollout/mixed_group_fraction"], summary(alone)["rollout/mixed_episode_fraction"]) == (
        1 / 2,
        6 / 8,
    )


def replace_id(episode: Any, name: str) -> Any:
    """The episode under another name."""
    closed = [replace(t, leaf=t.leaf._replace(episode=name)) for t in episode.trajectories]
    return replace(episode, id=name, trajectories=closed)


def test_the_ratio_is_plain_over_guided(letters):
    """numerator: the policy without the hint, by a forward pass of its own; denominator: what drew the answer."""
    request = RolloutRequest(Task("t", "q?"), 2, help={"hint": "HINT"})
    context = scripted_context(single(stop=()), ["xyz"], letters, logp=-2.0)
    (group,) = asyncio.run(play(context, [request]))
    group.scores["reward"] = {e.trajectories[0].leaf: Score(float(i)) for i, e in enumerate(group.episodes)}
    method = registry.methods.get("guide")()
    loop = assemble.loop(
        method,
        registry.tasks.get("bandit")(),
        StartModel(mini(264), letters, False, {}),
        assemble.RunSettings(steps=1, max_tokens=5),
    )
    batch = loop._compose(method.stage, context, [group]).batch
    assert (batch.get("off_context", "seq") == 1).all() and logprob_mismatch(batch, loop.learner, loop.state) == {}, (
        "drawn elsewhere is not the sampler's fault"
    )
    loop.learner.forward(batch, ["logp"])
    text = torch.tensor(letters.encode("q?xyz").tolist() + [letters.eos_token_id])
    model = mini(264)
    with torch.no_grad():
        plain = model.logits(model(text[None], causal_attention))[0].log_softmax(-1)
    expected = [float(plain[i - 1, text[i]]) for i in range(2, len(text))]
    assert (
        batch.get("logp")[: len(expected)] == pytest.approx(expected, abs=1e-5)
        and (batch.get("old_logp") == -2.0).all()
    )
    free = method.stage.updates[0].terms[0].fn
    assert free == clipped_ratio(low=0.2, high=0.2)
    assert registry.methods.get("guide")(corrected=False).stage.updates[0].terms[0].fn == free.reading(
        old_logp="prox_logp"
    )
