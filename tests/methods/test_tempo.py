"""TEMPO: the prefix tree by hand and against a trie."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.battery import of, same

from selfteach.core import BadValue
from selfteach.methods.tempo import add_branch_values, prefix_values

NAN = float("nan")


def test_values_of_prefixes_by_hand():
    # Group 0: ab e (1), ab c e (0), d e (1), group 1: ab e (1). V(a) = V(ab) = 1/2, V(abe) = 1, V(abc..) = 0, V(d..) =
    # 1; apart, all 1.
    a, b, c, d, e = 5, 6, 7, 8, 9
    texts = [(a, b, e), (a, b, c, e), (d, e), (a, b, e)]
    seq = np.repeat(np.arange(4), [len(t) for t in texts])
    values = prefix_values(np.concatenate(texts), seq, np.array([0, 0, 0, 1]), np.array([1.0, 0.0, 1.0, 1.0]))
    assert values.tolist() == [0.5, 0.5, 1, 0.5, 0.5, 0, 0, 1, 1, 1, 1, 1]
    # The temporal difference: from the mean 2/3 to 1/2 at a: -1/6; +-1/2 where e and c part; 2/3 to 1 at d: 1/3. std
    # over n - 1: sqrt(1/3).
    adv = np.array([1 / 3, -2 / 3, 1 / 3, 0.0]) * math.sqrt(3)
    got = add_branch_values(
        adv=adv, reward=[1.0, 0.0, 1.0, 1.0], id=np.concatenate(texts), seq=seq, group=np.array([0, 0, 0, 1]), eps=0.0
    )["adv"].values
    change = [-1 / 6, 0, 1 / 2, -1 / 6, 0, -1 / 2, 0, 1 / 3, 0, 0, 0, 0]
    assert got == pytest.approx(adv[seq] + math.sqrt(3) * np.array(change))


def test_a_truncated_answer_shares_its_prefix_with_a_longer_one():
    # x (1) is cut off; x y (0): V(x) = 1/2 for both, and y brings it to 0.
    assert prefix_values([1, 1, 2], [0, 1, 1], np.array([0, 0]), [1.0, 0.0]).tolist() == [0.5, 0.5, 0.0]


def test_groups_of_equal_or_unknown_rewards():
    given = {"id": [1, 2, 1, 3], "seq": [0, 0, 1, 1], "group": np.array([0, 0])}
    assert (add_branch_values(adv=[0.0, 0.0], reward=[0.9, 0.9], **given)["adv"].values == 0).all()
    assert np.isnan(add_branch_values(adv=[NAN, NAN], reward=[1.0, NAN], **given)["adv"].values).all()
    assert add_branch_values(adv=[0.0], reward=[1.0], id=[1], seq=[0], group=np.array([0]))["adv"].values.tolist() == [
        0.0
    ]
    with pytest.raises(BadValue, match="in order"):
        prefix_values([1, 2], [1, 0], np.array([0, 0]), [1.0, 0.0])


def test_differences_along_a_path_sum_to_reward_minus_mean():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 7, 24)
    seq, group = np.repeat(np.arange(24), lengths), np.arange(24) % 3
    reward, ids = rng.integers(0, 2, 24).astype(float), rng.integers(0, 2, lengths.sum())
    after = prefix_values(ids, seq, group, reward)
    for i in range(24):  # a trie
        rows = np.flatnonzero(seq == i)
        for t, row in enumerate(rows):
            mates = [
                j
                for j in range(24)
                if group[j] == group[i] and list(ids[seq == j][: t + 1]) == list(ids[rows[: t + 1]])
            ]
            assert after[row] == pytest.approx(np.mean(reward[mates]))


def test_tempo_without_the_difference_is_grpo():
    same(of("tempo", rate=0.0), of("grpo"))
    with pytest.raises(AssertionError):
        same(of("tempo"), of("grpo"))


def test_what_is_added_to_the_std_makes_the_change_smaller():
    # ab, ac, ad with 1, 0, 0: changes 2/3 and -1/3 where they part, std over n - 1 sqrt(1/3) = 0.57735
    given = {"id": [7, 1, 7, 2, 7, 3], "seq": [0, 0, 1, 1, 2, 2], "group": np.array([0, 0, 0]), "reward": [1, 0, 0]}
    for more, below in (({}, 0.57735127), ({"eps": 0.5}, 1.07735027), ({"ddof": 0, "eps": 0.0}, math.sqrt(2) / 3)):
        got = add_branch_values(adv=np.ones(3), **given, **more)["adv"].values
        assert got == pytest.approx([1, 1 + 2 / 3 / below, 1, 1 - 1 / 3 / below, 1, 1 - 1 / 3 / below], rel=1e-8)
    got = add_branch_values(adv=np.ones(3), **given, eps=0.0, rate=0.5)["adv"].values
    assert got[:2] == pytest.approx([1, 1 + math.sqrt(3) / 3])
