"""SAR by hand: the relative drop of an answer's perplexity by the question."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.answers import plain_logp
from support.battery import Study, groups_of, of, same
from support.by_hand import token_gradient
from support.episodes import single_turn_group

from selfteach.core import Score, registry
from selfteach.methods.sar import aligned_ratio, per_trajectory_blind, self_aligned


def test_the_reward_by_a_plain_forward_pass():
    groups = groups_of()
    study, total = Study(of("sar", alpha=0.2), groups), {}
    for e, r in zip(
        [e for g in groups for e in g.episodes],
        [s.value for g in groups for s in g.scores["reward"].values()],
        strict=True,
    ):
        places = e.tree.places(e.trajectories[0].leaf.node)
        sampled = places[e.tree.action_mask[places]]
        blind = plain_logp([0, *e.tree.id[sampled].tolist()]).mean()
        ppl, ppl_blind = math.exp(-e.tree.logp[sampled].astype(np.float64).mean()), math.exp(-blind)
        total[e.id] = r + 0.2 * min(max((ppl_blind - ppl) / ppl_blind, -1), 1)
    for key in ("g0", "g1", "g2"):
        mine = np.array([v for n, v in total.items() if f"/{key}/" in n])
        want = mine - mine.mean()
        have = [v[0] for (n, row), v in study.columns().items() if row == 0 and f"/{key}/" in n]
        assert have == pytest.approx(want.tolist(), abs=1e-4)
    same(of("sar", alpha=0.0), of("dr_grpo"))


def test_of_right_answers_the_advantage_is_of_the_size_of_alpha_and_not_over_a_length():
    # without the question the first answer is four times less likely, the second as likely, and the third (of two
    # tokens) twice less likely by the geometric mean: drops 3/4, 0 and 1/2, so R = 1.15, 1 and 1.1, A = R - 3.25 / 3
    method = of("sar", alpha=0.2, limit=10)
    plain = method.replace(credit=(registry.blocks.get("per_trajectory")(), *method.stage.credit[1:]))
    group = [single_turn_group([(5,), (6,), (7, 8)], [1.0, 1.0, 1.0])]
    blind = np.array([-1.0 - math.log(4), -1.0, -1.0 - math.log(4), -1.0])
    adv = np.array([1.15, 1.0, 1.1, 1.1]) - 3.25 / 3
    got = token_gradient(plain, group, [-1.0] * 4, logp_blind=blind)
    assert got == pytest.approx((-adv / (3 * 10)).tolist())  # w = 1 / (3 * 10) for every token


def test_the_self_aligned_reward_of_all_answers_is_logged_also_where_it_is_not_paid():
    groups, drops = groups_of(), []
    for e in [e for g in groups for e in g.episodes]:
        places = e.tree.places(e.trajectories[0].leaf.node)
        sampled = places[e.tree.action_mask[places]]
        blind = plain_logp([0, *e.tree.id[sampled].tolist()]).mean()
        drops.append(min(max(1 - math.exp(blind - e.tree.logp[sampled].astype(np.float64).mean()), -1), 1))
    equal = [g._replace(scores={"reward": dict.fromkeys(g.scores["reward"], Score(1.0))}) for g in groups]
    for given in (groups, equal):  # in the second no answer has an advantage
        assert Study(of("sar", alpha=0.0), given).metrics["policy/self_aligned"] == pytest.approx(
            np.mean(drops), abs=1e-4
        )


def test_the_blind_view_has_a_prompt_without_a_question(tags, letters):
    assert (
        letters.blank_prompt("compute: 1 + 1").tolist()
        == [letters.eos_token_id]
        == letters.blank_prompt((1, 2)).tolist()
    )
    group = single_turn_group([(5,), (6,)], [1.0, 0.0])
    examples = per_trajectory_blind(groups=[group], context=type("Context", (), {"tokenizer": tags}))
    assert [e.views for e in examples] == [{"blind": (tags.eos_token_id,)}] * 2
    named = per_trajectory_blind(
        groups=[single_turn_group([(5,)], [1.0], key="task:7")], context=type("Context", (), {"tokenizer": tags})
    )
    assert [e.views for e in named] == [{"blind": (tags.eos_token_id,)}]  # a task's name may have a colon
    assert [e.segments for e in examples] == [e.segments for e in registry.blocks.get("per_trajectory")(groups=[group])]


def test_concise_and_redundant_right_answers_are_told_apart_by_the_mean_length_of_the_right_ones():
    # of one, three and two tokens, right, and of five, wrong: the mean right one has two; without the question the
    # first is four times less likely, and of the second one token in three is eight times: twice by the geometric mean
    blind = np.zeros(11)
    blind[0], blind[1] = -math.log(4), -math.log(8)
    found = self_aligned(
        reward=[1.0, 1.0, 1.0, 0.0], logp=np.zeros(11), logp_blind=blind, seq=[0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3]
    )
    assert found["redundant"].values.tolist() == [0.0, 1.0, 0.0, -1.0]
    aligned, redundant = found["aligned"].values, found["redundant"].values
    assert aligned == pytest.approx([0.75, 0.5, 0.0, 0.0])
    told = vars(aligned_ratio)["logged"]
    assert told["aligned_concise"](aligned, redundant).tolist() == pytest.approx([0.75, 0.0])
    assert told["aligned_redundant"](aligned, redundant).tolist() == pytest.approx([0.5])
