"""Search-R1 by hand: retrieved tokens are masked out of every loss term."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.battery import Study, groups_of, of, same, same_gradient, with_weigh
from support.episodes import scripted_context

from selfteach.core import RolloutRequest, Task
from selfteach.loop.episode import play


def test_search_r1_without_a_call_is_grpo_with_a_token_mean():
    same(of("search_r1", beta=0.0), with_weigh(of("grpo"), "token_mean"))


@pytest.mark.parametrize("mask", [True, False])
def test_retrieved_tokens_are_learned_only_without_the_mask(tags, mask):
    """<search> q </search> is 3 tokens, <answer> 7 </answer> 3; "<information>a</information>" between them 3 more.

    The policy sampled 6 of the 9 tokens after the prompt; the mask leaves these, the ablation learns all 9.
    """
    program = of("search_r1", mask=mask).stage.programs["main"]
    context = scripted_context(
        program, ["<search>q</search>", "<answer>7</answer>"], tags, tools={"search": lambda q: "a"}
    )
    (episode,) = asyncio.run(play(context, [RolloutRequest(Task("t", "Q: ", "7"))]))[0].episodes
    tree = episode.tree
    places = tree.places(episode.trajectories[0].leaf.node)
    assert episode.answer == "7" and int(tree.action_mask[places].sum()) == (6 if mask else 9)
    assert int(np.isfinite(tree.logp[places]).sum()) == 6  # an adopted token has no log-probability of the sampler


def test_the_loss_is_a_mean_over_sampled_tokens_alone():
    # 2 observations of one token each change neither the number of rows nor their weight, 1 / tokens sampled
    study = Study(of("search_r1", beta=0.0), groups_of(observed=1))
    sampled = sum(int(e.tree.action_mask.sum()) for g in groups_of(observed=1) for e in g.episodes)
    assert study.batch.size("token") == sampled
    weights = (
        np.asarray(study.weights[0])[study.batch.get("seq")] if len(study.weights[0]) != sampled else study.weights[0]
    )
    assert weights == pytest.approx(np.full(sampled, 1 / sampled))


def test_the_kl_to_the_reference_is_a_term_of_its_own():
    with pytest.raises(AssertionError):
        same_gradient(Study(of("search_r1", beta=0.1), groups_of()), Study(of("search_r1", beta=0.0), groups_of()))
