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
    """bool[N]: the tokens that are learned."""
    columns, after = within_budget(adv=ADV, seq=SEQ, state=state, **options)  # type: ignore[arg-type]
    assert after == state + 1 and columns["keep"].unit == "token"
    return columns["keep"].values.astype(bool)


@pytest.mark.parametrize("budget", [1, 3, 10, 17, 32, 33])
def test_a_batch_holds_exactly_the_budget_and_the_crossing_answer_loses_its_end(budget: int):
    for state in range(50):
        keep = kept(state, budget=budget)
        assert keep.sum() == budget
        parts = [own for own in np.split(keep, np.cumsum(LENGTHS)[:-1]) if 0 < own.sum() < len(own)]
        assert len(parts) <= 1  # all others are whole, or not in it
        assert all(own[: own.sum()].all() for own in parts)
    assert kept(0, budget=40).all()  # a pool of 33 tokens does not fill it


def test_a_budget_that_is_reached_with_an_answer_cuts_none():
    # two answers of three tokens and one of two: 6 are reached by the first two of whichever order, or in the third
    ends = set[tuple[int, ...]]()
    for state in range(30):
        columns, _ = within_budget(adv=np.zeros(3), seq=np.repeat([0, 1, 2], [3, 3, 2]), state=state, budget=6)
        ends.add(tuple(np.bincount(np.repeat([0, 1, 2], [3, 3, 2]), columns["keep"].values).astype(int)))
    # orders: 0 1 and 1 0 are full at 6; 0 2 and 2 0 hold 5, and one of the next; 1 2 and 2 1 too
    assert ends == {(3, 3, 0), (3, 1, 2), (1, 3, 2)}


def test_the_order_is_random_without_favour_for_short_answers():
    counts = np.mean([kept(state, budget=17) for state in range(2000)], axis=0)
    first = counts[np.cumsum(LENGTHS) - LENGTHS]
    # half of the 33 tokens: an answer of whatever length is begun in about half of the batches
    assert first.min() > 0.45 and first.max() < 0.65
    assert not np.array_equal(kept(0, budget=17), kept(1, budget=17))
    assert np.array_equal(kept(3, budget=17), kept(3, budget=17))


def test_by_answers_the_budget_counts_whole_answers():
    for state in range(20):
        own = np.bincount(SEQ, kept(state, budget=3, by="answers"))
        assert np.count_nonzero(own) == 3 and all(n in (0, length) for n, length in zip(own, LENGTHS, strict=True))
    with pytest.raises(BadValue, match="by must be one of tokens, answers"):
        of("c3po", by="steps")


def test_the_loss_is_divided_by_the_budget():
    assert over_budget(length=np.array([1, 3]), budget=8).tolist() == [0.125, 0.125]
    group = single_turn_group([(5, 5), (6,)], [1.0, 0.0])  # advantages +-1/sqrt(2) * 1, all three tokens fit
    a = 0.5 / np.sqrt(0.5)
    assert token_gradient(of("c3po", budget=8), [group], [-1.0] * 3) == pytest.approx([-a / 8, -a / 8, a / 8], rel=1e-5)
    # of a budget of 2 either both of the first are learned, or the second and the first token of the first
    cut = token_gradient(of("c3po", budget=2), [group], [-1.0] * 2)
    assert cut in (pytest.approx([-a / 2, -a / 2], rel=1e-5), pytest.approx([-a / 2, a / 2], rel=1e-5))
    answers = token_gradient(of("c3po", budget=8, by="answers"), [group], [-1.0] * 3)
    assert answers == pytest.approx([-a / 4, -a / 4, a / 2], rel=1e-5)  # an answer's tokens share its half


def test_a_number_of_answers_that_holds_all_is_grpo():
    same(of("c3po", budget=10_000, by="answers"), of("grpo", beta=0.0))
