"""Triplets: no name says what is wanted, training has few names, and a text ends where it is right."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from support.episodes import scripted_context

from selfteach.configuration import task_source
from selfteach.core import BadValue
from selfteach.core.task import RolloutRequest
from selfteach.loop.episode import play
from selfteach.tasks.triplets import holds_answer, until_right


def test_training_has_few_names_and_the_test_none_of_them():
    source = task_source("triplets", {"prompts": 5, "n_test": 300})
    wanted = {t.prompt: t.answer for t in map(source.train, range(200))}
    assert len(wanted) == 5 and all(source.train(i).answer == wanted[source.train(i).prompt] for i in range(50))
    assert not wanted.keys() & {t.prompt for t in source.test} and len({t.prompt for t in source.test}) == 300
    shares = Counter(t.answer[0] for t in source.test)
    assert set(shares) == {"0 0 0", "1 1 1", "2 2 2"} and all(
        count / 300 == pytest.approx(1 / 3, abs=0.1) for count in shares.values()
    )
    task = source.train(0)
    assert task.tags["hypotheses"] == ("0 0 0", "1 1 1", "2 2 2") and len({*task.tags["all_triplets"]}) == 27
    assert all(len(source.demos(i).data[0].split()) == 12 for i in range(20))


def test_what_is_right_stands_anywhere_in_a_text():
    task = task_source("triplets", {}).test[0]
    wanted, other = task.answer[0], next(x for x in task.tags["hypotheses"] if x != task.answer[0])
    judge = holds_answer()
    assert [judge(answer=a, task=task).value for a in (f"{other} {wanted}", wanted, other, "", wanted[:-1])] == [
        1.0,
        1.0,
        0.0,
        0.0,
        0.0,
    ]
    assert judge(answer=wanted + "1", task=task).value == 0.0, "a longer symbol is another one"


def test_a_text_ends_where_it_is_right(letters):
    tasks = task_source("triplets", {}).test[:20]
    context = scripted_context(until_right(), lambda text, at: " 0 0 0 1 1 1 2 2 2", letters)
    for task in tasks:
        (group,) = asyncio.run(play(context, [RolloutRequest(task, 1)]))
        symbol = int(task.answer[0][0])
        assert group.episodes[0].answer == "0 0 0 1 1 1 2 2 2"[: 5 + 6 * symbol]


@pytest.mark.parametrize(
    "options,why", [({"symbols": 10}, "at most 9"), ({"prompts": 0}, "prompts"), ({"again": 2.0}, "again")]
)
def test_mistakes_are_named(options, why):
    with pytest.raises(BadValue, match=why):
        task_source("triplets", options)
