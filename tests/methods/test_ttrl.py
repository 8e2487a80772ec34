"""TTRL by hand: the majority answer as the label, and the samples that only vote."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.answers import answered, paid
from support.battery import Study, groups_of, of, same

from selfteach.configuration import task_source
from selfteach.methods.ttrl import keep_first
from selfteach.reward.answer import exact_match
from selfteach.reward.vote import majority_vote


def test_the_majority_answer_is_the_pseudo_label():
    # 7 has two of four votes, however it is spelled; the label is 8. Paid 1 1 0 0 where the truth would pay 0 0 1 0, so
    # one is hit.
    answers = ["7", " 7.0", "8", None]
    scores = paid(majority_vote(metric_judge=exact_match()), answered(answers, "8"))
    assert [s.value for s in scores] == [1, 1, 0, 0]
    assert [s.parts["hit"] for s in scores] == [0, 0, 0, 1] and [s.parts["right"] for s in scores] == [0, 0, 1, 0]
    assert {s.parts["label"] for s in scores} == {0} and {s.parts["share"] for s in scores} == {0.5}
    same_votes = paid(majority_vote(metric_judge=exact_match()), answered(answers, "7"))
    assert [s.value for s in same_votes] == [1, 1, 0, 0] and {s.parts["label"] for s in same_votes} == {
        1
    }  # the reward does not depend on the label
    assert [s.value for s in paid(majority_vote(ties="none"), answered(["7", "8"], "7"))] == [0, 0]
    assert [s.value for s in paid(majority_vote(), answered([None, ""], "7"))] == [0, 0]


def test_samples_that_only_vote_are_in_no_baseline():
    # rewards of g0 are 0, 1/2, 1, 3/2; the first two alone: mean 1/4, std sqrt(1/8), so -+ 1/4 / sqrt(1/8) = -+ 0.7071
    study = Study(of("ttrl", keep=2), groups_of())
    adv = {name: v[0] for (name, row), v in study.columns().items() if row == 0 and "/g0/" in name}
    assert list(adv.values()) == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], abs=1e-5)
    assert study.dropped["dropped/keep_first"] == sum(
        int(e.tree.action_mask.sum()) for g in groups_of() for e in g.episodes[2:]
    )


def test_ttrl_with_every_vote_kept_and_labels_is_grpo_on_the_test_questions():
    same(of("ttrl", keep=99, labels=True), of("grpo"))
    differ = {place for place, _, _ in of("ttrl", keep=99, labels=True).diff(of("grpo", groups=16, rollouts=16))}
    assert differ == {"select", "credit.1", "credit.2"}
    source = task_source("chain_sum", {"n_test": 8})
    asked, _ = of("ttrl").stage.select(n=8, rollouts=2, finished_rounds=[], source=source, seed=0, state=0)
    assert {r.task.id for r in asked} == {t.id for t in source.test}


def test_the_first_votes_of_each_group_are_learned():
    got = keep_first(group=np.array([0] * 10 + [1] * 3))["keep"].values
    assert got.tolist() == [1.0] * 8 + [0.0] * 2 + [1.0] * 3
    assert keep_first(group=np.array([0, 1, 0, 0, 1]), n=2)["keep"].values.tolist() == [1, 1, 1, 0, 1]
