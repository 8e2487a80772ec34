"""Echo: which answers are too old, by hand; a pull is GRPO, a push corrects or does not."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest
from support.loops import advance, bandit, equal, loop_of, weights_of

from selfteach.core import BadValue, History
from selfteach.methods import echo, grpo
from selfteach.methods.echo import within_window


def kept(version: list[int], seq: list[int], step: int, window: int) -> list[float]:
    found = within_window(
        version=np.array(version, int), seq=np.array(seq, int), history=History(step=step), window=window
    )
    return list(found["keep"].values)


def test_an_answer_is_as_old_as_its_oldest_token():
    # Of step 10: ages 3 and 0; 2 and 2; 4. What no weights of this run sampled (-1) counts as new.
    version, seq = [7, 10, 8, 8, 6, -1], [0, 0, 1, 1, 2, 3]
    assert kept(version, seq, 10, 2) == [0, 1, 0, 1]
    assert kept(version, seq, 10, 3) == [1, 1, 0, 1]
    assert kept(version, seq, 10, 4) == [1, 1, 1, 1]
    assert kept([], [], 10, 4) == []


def test_a_pull_is_grpo_and_a_push_is_not(letters):
    pull, plain = echo(groups=2, rollouts=4, protocol="pull"), grpo(groups=2, rollouts=4)
    assert [str(s) for s in pull.stages] == [str(s) for s in plain.stages] and pull.stage.staleness == 0
    push = echo(groups=2, rollouts=4, window=3)
    assert push.stage.staleness == 3 and "within_window(window=3)" in map(str, push.stage.credit)


def test_what_is_too_old_is_dropped_by_name_and_corrected_it_learns_otherwise(letters):
    def trained(**more):
        stage = echo(**more).stage
        loop = loop_of(bandit().replace(credit=stage.credit, updates=stage.updates, staleness=2), letters)
        return advance(loop, 6), weights_of(loop)

    old = trained(window=1)[0]  # of ages 0, 1, 2, 2, 2, 2
    assert [m["tokens/in_loss"] > 0 for m in old] == [True, True, False, False, False, False]
    assert [m.get("dropped/within_window", 0) == m["tokens/sampled"] for m in old] == [False, False] + [True] * 4
    (_, one), (_, other) = trained(window=2), trained(window=2, correct=False)
    assert not equal(one, other)


@pytest.mark.parametrize("wrong", [{"protocol": "both"}, {"window": -1}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(BadValue, match=f"echo: {next(iter(wrong))} must be"):
        echo(**wrong)


def test_the_example_in_the_docstring_is_true():
    assert not doctest.testmod(importlib.import_module("selfteach.methods.echo")).failed
