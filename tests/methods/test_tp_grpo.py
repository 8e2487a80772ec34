"""TP-GRPO: what an answer says of its own steps, and the four advantages by hand."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.answers import answered_group
from support.battery import of

from selfteach.core import collate
from selfteach.core.scoring import score
from selfteach.credit.composers import per_trajectory
from selfteach.methods.tp_grpo import of_thoughts, own_verdicts, verdicts

NAN, A = float("nan"), 2**-0.5


def test_what_is_taken_back_and_what_depends_on_it():
    steps = ["2 + 3 ~ 9.", "9 + 1 = 0.", "4 + 4 = 8.", "wait 2 + 3 = 5.", "5 + 1 = 6.", "so"]
    found = verdicts(steps, "2 + 3 = 5. 5 + 1 = 6.")
    assert [v and v.taken_back for v in found] == [True, True, False, False, False, None]
    assert [v and v.repeated for v in found] == [False, False, False, True, True, None]


def test_a_step_that_is_confirmed_was_not_wrong_and_one_that_was_never_done_blames_nothing():
    assert not any(v and v.taken_back for v in verdicts(["2 + 3 = 5.", "wait 2 + 3 = 5."], ""))
    assert not any(v and v.taken_back for v in verdicts(["2 + 3 = 5.", "wait 7 + 3 = 0."], ""))


def test_an_estimate_that_the_solution_repeats_is_the_same_step():
    assert [v and v.repeated for v in verdicts(["2 + 3 ~ 9.", "9 + 1 = 0."], "2 + 3 ~ 9. 9 + 2 = 1.")] == [True, False]


# Two answers, the first right: three steps of two tokens, of which the first was taken back; a solution of one token.
# The second is wrong: two steps, of which its solution repeats the second, and a solution of one token. Of rewards 1
# and 0 the advantages are 0.7071 and -0.7071.
BACK = [NAN, 1.0, NAN, 0.0, NAN, 0.0, NAN, NAN, 0.0, NAN, 0.0, NAN]
AGAIN = [NAN, 0.0, NAN, 1.0, NAN, 1.0, NAN, NAN, 0.0, NAN, 1.0, NAN]
GIVEN = {
    "reward": [1.0, 0.0],
    "taken_back": BACK,
    "repeated_later": AGAIN,
    "seq": [0] * 7 + [1] * 5,
    "group": np.zeros(2, np.int64),
}


@pytest.mark.parametrize(
    ("options", "right", "wrong"),
    [
        ({}, [A - 0.25] * 2 + [A] * 5, [0, 0, -A, -A, -A]),  # r_c = 0.5 * 0.5
        ({"alpha": 1.0}, [A - 0.5] * 2 + [A] * 5, [0, 0, -A, -A, -A]),
        ({"adaptive": False}, [A - 0.5] * 2 + [A] * 5, [0, 0, -A, -A, -A]),  # r_c = 0.5
        # every step rewarded: sums of later ones are -1 + 1 + 1, 2, 1, and 0 in the solution; -1 + 1, 1, 0
        ({"merge": False}, [A + 0.25] * 2 + [A + 0.5] * 2 + [A + 0.25] * 2 + [A], [-A, -A, -2 * A, -2 * A, -A]),
    ],
)
def test_the_four_advantages(options: dict[str, object], right: list[float], wrong: list[float]):
    assert of_thoughts(**GIVEN, **options)["adv"].values == pytest.approx([*right, *wrong], rel=1e-4)


@pytest.mark.parametrize("begin", ["<think> ", ""])
def test_verdicts_fall_on_the_steps_of_sampled_answers(tags, begin):
    texts = [f"{begin}2 + 3 ~ 9. wait 2 + 3 = 5.</think> 2 + 3 = 5.<answer> 5</answer>"]
    group, context, _ = answered_group(texts, "5", tags, lambda text: [1.0])
    group.scores.update(asyncio.run(score(own_verdicts(), [group], context)))
    (example,) = per_trajectory(groups=[group], tokens=("taken_back", "repeated_later"))
    batch = collate([example], context.tree)
    known = np.flatnonzero(~np.isnan(batch.get("taken_back")))
    assert batch.get("taken_back")[known].tolist() == [1, 0] and batch.get("repeated_later")[known].tolist() == [0, 1]
    ends = [tags.decode(batch.get("id")[: n + 1]) for n in known]
    assert ends[0].endswith("~ 9.") and ends[1].endswith("wait 2 + 3 = 5.")


def test_steps_of_answers_are_judged_by_default():
    assert [p.name for p in of("tp_grpo").stage.reward] == ["exact_match", "own_verdicts"]
