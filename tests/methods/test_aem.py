"""AEM: factors of turns by hand, their mean, and what the scope and the direction change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.battery import of, same

from selfteach.methods.aem import entropy_factors, modulate_by_entropy

# Two episodes of two turns: entropies 0 and 0.5 (of two tokens 0.2 and 0.8), 1 and 2.
ENTROPY, STEP = np.array([0.0, 0.2, 0.8, 1.0, 2.0]), np.array([0, 1, 1, 2, 3])
SEQ, GROUP = np.array([0, 0, 1, 1]), np.zeros(4, np.int64)


def test_the_surest_turn_weighs_most_and_the_mean_is_one():
    # h = 0, 1/4, 1/2, 1: exp(-h) = 1, 0.7788, 0.6065, 0.3679, mean 0.6883
    factors = entropy_factors(ENTROPY, STEP, GROUP, 1.0, 0.1)
    assert factors == pytest.approx(np.exp([0, -0.25, -0.5, -1]) / 0.68830, rel=1e-4)
    assert factors.mean() == pytest.approx(1.0)
    other = entropy_factors(ENTROPY, STEP, GROUP, 1.0, 0.1, "unsure")
    assert other == pytest.approx(np.exp([0, 0.25, 0.5, 1]) / np.exp([0, 0.25, 0.5, 1]).mean())
    assert sorted(entropy_factors(ENTROPY, STEP, GROUP, 1.0, 0.1, "shuffled")) == sorted(factors)


def test_shuffled_factors_say_nothing_of_the_number_of_a_turn():
    # Two groups of 16 episodes of two turns, sure of the first and unsure of the second: factors 1.462 and 0.538. Dealt
    # out by half of the group round, or by any even number, every first turn would have 1.462 again.
    n, entropy, group = 64, np.tile([0.0, 1.0], 32), np.repeat([0, 1], 32)
    plain, dealt = (entropy_factors(entropy, np.arange(n), group, 1.0, 0.1, d) for d in ("sure", "shuffled"))
    assert plain == pytest.approx(np.tile([1.46212, 0.53788], 32), rel=1e-4)
    high = dealt > 1
    assert all(4 <= high[at][turn::2].sum() <= 12 for at in (group == 0, group == 1) for turn in (0, 1))
    assert high[group == 0].sum() == high[group == 1].sum() == 16, "dealt out within a group"
    assert high[:32].tolist() != high[32:].tolist(), "each group in an order of its own"


def test_the_order_of_shuffled_factors_is_that_of_what_was_sampled():
    entropy, group = np.arange(8.0), np.zeros(8, np.int64)
    first, near = (entropy_factors(e, np.arange(8), group, 1.0, 0.1, "shuffled") for e in (entropy, entropy + 1e-9))
    assert first == pytest.approx(near), "entropies that differ by rounding are dealt out alike"
    longer = entropy_factors(np.repeat(entropy, 2), np.repeat(np.arange(8), 2), group, 1.0, 0.1, "shuffled")
    assert sorted(first) == pytest.approx(sorted(longer)) and first != pytest.approx(longer)


def test_a_narrow_range_is_left_alone():
    assert entropy_factors(np.array([0.5, 0.59]), np.arange(2), np.zeros(2, np.int64), 1.0, 0.1).tolist() == [1, 1]
    assert entropy_factors(np.array([0.5, 0.65]), np.arange(2), np.zeros(2, np.int64), 1.0, 0.1)[0] > 1


@pytest.mark.parametrize(("scope", "first"), [("group", 1 / 0.68830), ("trajectory", 2 / (1 + math.exp(-1)))])
def test_entropies_are_compared_within_the_scope(scope: str, first: float):
    # within the first episode h = 0, 1: exp(-h) = 1, 0.3679, mean 0.6839
    given = {"entropy": ENTROPY, "step": STEP, "seq": SEQ, "group": GROUP, "batch": np.zeros(5, np.int64)}
    adv = modulate_by_entropy(adv=[2.0, -1.0], **given, scope=scope)["adv"].values
    assert adv[0] == pytest.approx(2 * first, rel=1e-4) and adv[1] == adv[2] and adv[3] < adv[4] < 0


def test_without_modulation_it_is_grpo():
    same(of("aem", lam=0.0), of("grpo"))
    with pytest.raises(AssertionError):
        same(of("aem", least_range=0.0), of("grpo"))
