"""Qwen2.5-Math by hand: the reward model's loss, what is imitated, RL's reward, and the best of several answers."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import scripted_context, single_turn_group

from selfteach.core import RolloutRequest, Task
from selfteach.loop.episode import play
from selfteach.methods.qwen_math import best_right, combined, listwise, rm_best


def test_the_reward_models_loss_is_the_mean_over_pairs_of_right_and_wrong():
    scores = torch.tensor([1.0, 3.0, 0.0, 9.0, 7.0])
    rows = {"scalar_after": scores, "seq": torch.arange(5), "group": torch.tensor([0, 0, 0, 0, 1])}
    got = listwise(**rows, reward=torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0]))
    gaps = np.array([1.0 - 0.0, 1.0 - 9.0, 3.0 - 0.0, 3.0 - 9.0])  # two right, two wrong; the other group has no pair
    assert got.tolist() == pytest.approx([np.log1p(np.exp(-gaps)).mean(), 0.0], rel=1e-5)


def test_the_reward_model_learns_from_mixed_groups_alone():
    judge = of("qwen_math").stages[0]
    groups = [
        single_turn_group([(5, 5), (6,)], [1.0, 0.0], "a"),
        single_turn_group([(7,), (8,)], [1.0, 1.0], "b"),
    ]
    made = of("qwen_math").replace(**{n: getattr(judge, n) for n in ("credit", "updates")})
    got = token_gradient(made, groups, [9.0, 0.0, 0.0], name="scalar_after")  # of a text's last token alone
    assert got == pytest.approx([0.0, -0.5, 0.5])


def test_what_the_reward_model_likes_most_among_right_answers_is_imitated():
    rows: dict[str, Any] = {"seq": [0, 0, 1, 2, 3, 4], "group": [0, 0, 0, 0, 1]}
    got = best_right(reward=[1.0, 1.0, 1.0, 0.0, 0.0], rm_scalar_after=[8.0, 1.0, 2.0, 3.0, 9.0, 9.0], **rows, best=2)
    assert got["keep"].values.tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]  # 1 of the first, at its end; wrong ones never


def test_every_right_answer_is_worth_more_than_every_wrong_one():
    rows: dict[str, Any] = {"rm_scalar_after": [-50.0, 2.0, 50.0, 2.0], "seq": [0, 1, 2, 3]}
    got = combined(reward=[1.0, 1.0, 0.0, 0.0], **rows, alpha=0.5)["reward"].values
    liked = 1 / (1 + np.exp(-1.0))  # sigmoid(0.5 * 2)
    assert got == pytest.approx([0.0, liked, 0.0, liked - 1], abs=1e-9)
    alone = combined(reward=[1.0, 1.0, 0.0, 0.0], **rows, alpha=0.5, paid="model")["reward"].values
    assert alone == pytest.approx([0.0, liked, 1.0, liked], abs=1e-9)  # the best is a wrong one
    assert [p.name for p in of("qwen_math", paid="rule").stage.credit] == ["per_trajectory", "norm"]


def test_the_stages_are_rounds_of_judging_and_imitating_and_then_rl():
    made = of("qwen_math", rounds=2, judge_steps=3, imitate_steps=1)
    assert [(s.name, s.until) for s in made.stages] == [("judge", 3), ("imitate", 1)] * 2 + [("main", None)]
    assert made.stage.enter == {"ref": "policy"} and of("qwen_math", beta=0.0).stage.enter == {}
    assert [s.name for s in of("qwen_math", rounds=1, imitate_steps=0).stages] == ["judge", "main"]


def test_the_best_of_several_answers_is_the_one_that_is_liked_most(letters: Any):
    texts = ["<answer>a</answer>", "<answer>bb</answer>", "<answer>c</answer>"]
    context = scripted_context(rm_best(k=3), texts, letters, model_roles=("policy", "rm"))
    engine = context.engine
    liked = {"a": 0.1, "bb": 0.7, "c": 0.3}

    async def score(model_role: str, before: Any, tokens: Any, want: Any) -> Any:
        assert model_role == "rm"
        text = letters.decode(tokens).removeprefix("<answer>").removesuffix("</answer>")
        return {"scalar_after": np.array([9.0] * (len(tokens) - 1) + [liked[text]])}

    engine.score = score
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "say"))]))
    assert group.episodes[0].status != "error", group.episodes[0].why
    assert group.episodes[0].answer == "bb"
