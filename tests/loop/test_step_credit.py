"""The AUC of credit between right and wrong steps of an answer, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.answers import answered_group

from selfteach.core import Block, block, collate
from selfteach.credit.composers import per_trajectory
from selfteach.loop.step_credit import step_auc, step_judges


@block
def small(*, step: str) -> bool | None:
    """A step with an a is right, one with a b wrong, any other none."""
    return None if not {"a", "b"} & {*step} else "a" in step


def batch_of(texts: list[str], tokenizer, judge: Block | None):
    group, context, _ = answered_group(texts, "7", tokenizer, lambda text: [0.0])
    judges = {} if judge is None else {"step": judge}
    task = replace(group.request.task, judges=judges)
    group = group._replace(request=replace(group.request, task=task))
    return collate(per_trajectory(groups=[group]), context.tree), step_judges([group])


def test_a_right_step_is_to_have_more_credit_than_a_wrong_one_of_the_same_answer(letters):
    batch, judges = batch_of(["a. b. a.", "a. a. c.", "b. a."], letters, small())
    ids, seq = batch.ids[batch.place], batch.get("seq")
    pieces = np.array([p.decode() for p in letters.token_bytes(ids)])

    def measured(adv: np.ndarray) -> float | None:
        batch.put("adv", "token", adv)
        return step_auc(batch, judges, letters)

    has = np.char.find
    assert measured(np.where(has(pieces, "b") >= 0, -9.0, 0.0)) == 1.0, "the wrong step is blamed"
    assert measured(np.where(has(pieces, "b") >= 0, 9.0, 0.0)) == 0.0
    assert measured(np.zeros(len(ids))) == 0.5 == measured(seq.astype(float)), "credit of whole answers"
    # The second answer has no wrong step. Credit that falls by a token: of the first answer the wrong step lies between
    # the two right ones (1/2), of the third it comes first and so has more (0).
    assert measured(-np.arange(len(ids), dtype=float)) == pytest.approx((0.5 + 0.0) / 2)


def test_without_a_judge_or_credit_of_tokens_nothing_is_measured(letters):
    batch, judges = batch_of(["a. b."], letters, small())
    assert step_auc(batch, judges, letters) is None, "no advantage yet"
    batch.put("adv", "seq", np.ones(1))
    assert step_auc(batch, judges, letters) is None, "one advantage for the whole answer"
    batch, judges = batch_of(["a. b."], letters, None)
    batch.put("adv", "token", np.ones(batch.size("token")))
    assert judges == {} and step_auc(batch, judges, letters) is None


def test_of_turns_those_that_came_closer_to_the_goal_are_right(letters):
    batch, judges = batch_of(["ab", "cd"], letters, None)
    assert batch.size("step") == 2 and judges == {}
    batch.index["step"] = np.array([0, 1, 2, 3])  # each token a turn of its own, two in each episode
    batch.index["seq"] = np.array([0, 0, 1, 1])
    batch.put("progress", "step", np.array([1.0, 0.0, -1.0, np.nan]))
    batch.put("adv", "step", np.array([0.5, 0.2, 0.1, 0.9]))
    assert step_auc(batch, judges, letters) == 1.0  # of the first episode alone: the second has no turn that is right
    batch.put("adv", "token", np.array([0.1, 0.2, 0.1, 0.9]))
    assert step_auc(batch, judges, letters) == 0.0
    batch.put("adv", "seq", np.ones(2))
    assert step_auc(batch, judges, letters) is None
