"""C3PO by hand: how many tokens an update learns, and what its loss is divided by."""

from __future__ import annotations

import numpy as np
import pytest
from support.battery import of, same
from support.by_hand import token_gradient
from support.episodes import single_turn_group

from selfteach.core import BadValue
from selfteach.methods.c3po import over_budget, within_budget

LENGTHS = np.array([5, 1, 7, 2, 2, 9, 4, 3])
SEQ = np.repeat(np.arange(8), LENGTHS)
ADV = np.zeros(8)


def kept(state: int, **options: int | str) -> np.ndarray:
    columns, after = within_budget(adv=ADV, seq=SEQ, state=state, **options)  # type: ignore[arg-type]
    assert after == state + 1
    return columns["keep"].values.astype(bool)


@pytest.mark.parametrize("budget", [3, 10, 17, 32])
def test_what_is_kept_fits_the_budget_and_one_more_would_not(budget: int):
    for state in range(50):
        keep = kept(state, budget=budget)
        tokens = LENGTHS[keep].sum()
        assert tokens <= budget or keep.sum() == 1  # the first is kept always
        assert tokens + 9 > budget  # the next one did not fit, and none is longer than 9
    assert kept(0, budget=33).all()


def test_the_order_is_random_without_favour_for_short_answers():
    counts = np.mean([kept(state, budget=17) for state in range(2000)], axis=0)
    # half of the 33 tokens: the first answers in a random order; the short ones fit slightly more often at the end
    assert abs(counts - 0.45).max() < 0.13
    assert not np.array_equal(kept(0, budget=17), kept(1, budget=17))
    assert np.array_equal(kept(3, budget=17), kept(3, budget=17))


def test_by_answers_the_budget_counts_answers():
    assert {int(kept(state, budget=3, by="answers").sum()) for state in range(20)} == {3}
    with pytest.raises(BadValue, match="by must be one of tokens, answers"):
        of("c3po", by="steps")


def test_the_loss_is_divided_by_the_budget():
    assert over_budget(length=np.array([1, 3]), budget=8).tolist() == [0.125, 0.125]
    group = single_turn_group([(5, 5), (6,)], [1.0, 0.0])  # advantages +-1/sqrt(2) * 1, all three tokens fit
    a = 0.5 / np.sqrt(0.5)
    assert token_gradient(of("c3po", budget=8), [group], [-1.0] * 3) == pytest.approx([-a / 8, -a / 8, a / 8], rel=1e-5)
    answers = token_gradient(of("c3po", budget=8, by="answers"), [group], [-1.0] * 3)
    assert answers == pytest.approx([-a / 3, -a / 3, a / 3], rel=1e-5)  # by their own tokens


def test_a_budget_that_holds_all_answers_is_grpo_with_a_token_mean():
    same(of("c3po", budget=10_000, by="answers"), of("lite_ppo", std="group", minibatches=1))
