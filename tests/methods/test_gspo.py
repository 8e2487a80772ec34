"""GSPO by hand: one ratio a sequence."""

from __future__ import annotations

import pytest
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import single_turn_group

GROUP = [single_turn_group([(5, 6), (7, 8)], [1.0, 0.0])]
A = 0.5**0.5  # of two answers: 1/2 over sqrt(1/2)


def gradient(*gaps: float) -> list[float]:
    return token_gradient(of("gspo"), GROUP, [g - 1 for g in gaps])


def test_a_token_moves_its_sequences_ratio_by_its_share():
    # mean gaps 3e-4 and 0: s = e^0.0003 and 1; each of two tokens has half of it, each of two sequences half the weight
    up = -A * 2.718281828**0.0003 / 4
    assert gradient(2e-4, 4e-4, 1e-2, -1e-2) == pytest.approx([up, up, A / 4, A / 4], rel=1e-5)


def test_a_sequence_is_clipped_as_a_whole():
    # 5e-4 > 4e-4 on average, though one token lies within; a bad one below -3e-4 likewise, and above it is free
    assert gradient(9e-4, 1e-4, -4e-4, -4e-4) == [0, 0, 0, 0]
    assert gradient(0, 0, 9e-4, 9e-4)[2:] == pytest.approx([A * 1.0009 / 4] * 2, rel=1e-5)
    assert gradient(0, 0, -2e-4, -2e-4)[2] > 0
