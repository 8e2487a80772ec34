"""The length of chains of thought: the best number of steps by hand, and a vote among the lengths that agree."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from support.battery import of
from support.episodes import scripted_context

from selfteach.core import BadValue, RolloutRequest, Task
from selfteach.loop.episode import play
from selfteach.methods.cot_length import accuracy_in_steps, best_steps, in_steady_bins, length_filtered_vote

NOISE = 1 - 2 / math.e  # Z = -2, as -2 e^-2 = -(1 - sigma) / e


def test_accuracy_is_an_inverted_u_of_the_number_of_steps():
    # T = 4, M = 2, sigma = 1/2: two steps carry all that a step can, (1/2 * 1/3)^3, (1/2 * 1/2)^4
    assert [accuracy_in_steps(n, 4, 2, 0.5) for n in (1, 2)] == [0.0, 0.0]
    assert accuracy_in_steps(3, 4, 2, 0.5) == pytest.approx(1 / 216) and accuracy_in_steps(4, 4, 2, 0.5) == 1 / 256
    # with sigma = 1 - 2/e a step at half of its limit is right with 1/e, so N* = 2 T / M and A(N*) = e^-N*
    assert best_steps(6, 3, NOISE) == pytest.approx(4) and accuracy_in_steps(4, 6, 3, NOISE) == pytest.approx(
        math.exp(-4)
    )


@pytest.mark.parametrize(("operations", "capability", "noise"), [(6, 3, NOISE), (10, 4, 0.05), (30, 12, 0.01)])
def test_the_formula_is_the_maximum(operations: float, capability: float, noise: float):
    best = best_steps(operations, capability, noise)
    grid = [n / 1000 for n in range(1, 40_000)]
    assert best == pytest.approx(max(grid, key=lambda n: accuracy_in_steps(n, operations, capability, noise)), abs=2e-3)


def test_harder_tasks_need_more_steps_and_better_models_fewer():
    assert best_steps(8, 4, 0.1) == pytest.approx(2 * best_steps(4, 4, 0.1))
    assert best_steps(8, 8, 0.1) == pytest.approx(best_steps(8, 4, 0.1) / 2)
    assert best_steps(8, 4, 0.2) < best_steps(8, 4, 0.1), "the more a step errs, the fewer there should be"
    for noise in (0.0, 1.0):
        with pytest.raises(BadValue, match="noise must be in"):
            best_steps(4, 2, noise)


def test_lengths_at_which_answers_agree_are_kept():
    # bins of 10: three that differ, two that agree, one alone
    lengths, answers = [1, 5, 9, 10, 19, 20], ["7", "8", "7", "5", " 5.0", "9"]
    assert in_steady_bins(lengths, answers, 10, 1) == [0, 0, 0, 1, 1, 0]
    assert in_steady_bins(lengths, answers, 10, 2) == [1, 1, 1, 1, 1, 0], "a bin of one comes last"
    assert in_steady_bins(lengths, answers, 10, 3) == [1] * 6 == in_steady_bins(lengths, answers, 100, 1)
    # of two that agree the one with more answers
    assert in_steady_bins([1, 2, 11, 12, 13], ["3", "3", "4", "4", "4"], 10, 1) == [0, 0, 1, 1, 1]


def voted(tags: Any, texts: list[str], **how: Any) -> Any:
    left = list(texts)
    context = scripted_context(length_filtered_vote(k=len(texts), **how), lambda *_: left.pop(0), tags)
    return asyncio.run(play(context, [RolloutRequest(Task("t", "2 + 3 =\n", ("5",)), 1)]))[0].episodes[0]


def test_a_vote_among_lengths_that_agree_is_not_outvoted_by_guesses(tags):
    # three short guesses, of which two are the same, and two long answers that agree
    long = "<think> " + "2 + 3 = 5. " * 4 + "</think><answer> 5</answer>"
    texts = [f"<answer> {a}</answer>" for a in ("8", "8", "8", "9")] + [long, long]
    width = len(tags.encode(texts[0])) + 2
    filtered = voted(tags, texts, width=width, keep=1)
    assert filtered.answer == "5" and voted(tags, texts, width=width, keep=0).answer == "8"
    assert voted(tags, texts, width=width).answer == "5" and voted(tags, texts, width=width, keep=2).answer == "8"
    assert [t.learn for t in filtered.trajectories].count("main") == 1


def test_training_is_grpo():
    assert {row.partition(".")[0] for row, *_ in of("cot_length").diff(of("grpo"))} == {"decode"}
