"""Kimi k1.5: the length reward, which questions are drawn, answers that are carried over."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.by_hand import token_gradient
from support.curriculum import answered, asked, source
from support.episodes import full_text, scripted_context, single_turn_group, spans

from selfteach.core import (
    BadValue,
    Episode,
    RolloutGroup,
    RolloutRequest,
    Sampling,
    Score,
    Task,
    block,
)
from selfteach.loop.episode import play
from selfteach.methods import kimi
from selfteach.methods.kimi import (
    carried_on,
    draw,
    from_easy_to_failed,
    guess,
    whole_groups,
)
from selfteach.reward.length import length_rewards, with_brevity

SELECT: dict[str, Any] = dict(questions=6, easy_steps=3, guesses=0)  # noqa: C408 (read by the battery)


def select(state: Any = None, rounds: Any = (), step: int = 0, n: int = 2, **more: Any) -> Any:
    part = from_easy_to_failed(**{**SELECT, **more})
    state = {"set": None, "left_out": 0, "rate": {}, "open": []} if state is None else state
    return asked(part, list(rounds), state, n=n, step=step)


def test_the_length_reward_by_hand():
    # lengths 8 to 16: 1/2 - (len - 8) / 8; a wrong answer is never paid for being short
    assert length_rewards([8, 10, 16, 8, 14], [True, True, True, False, False]) == [0.5, 0.25, -0.5, 0.0, -0.25]
    assert length_rewards([8, 8], [True, False]) == [0.0, 0.0] and length_rewards([], []) == []


def in_turn(verdicts: Any) -> Any:
    @block
    def next_verdict(*, answer: Any) -> Score:
        return next(verdicts)

    return next_verdict()


def test_brevity_is_paid_beside_the_answer_and_unknown_rewards_stay_unknown():
    group = single_turn_group([(5,), (5, 6, 7), (5, 6)], [1.0, 0.0, None])._replace(scores={})
    part = with_brevity(judge=in_turn(iter([Score(1.0), Score(0.0), Score(None)])), weight=0.5)
    scores = asyncio.run(part(group=group, context=None, deadline=1.0))["reward"].values()
    assert [s.value for s in scores] == [1.25, -0.25, None]  # 1 and 3 tokens: 1/2 and -1/2, half of it


def test_the_length_reward_begins_after_the_plain_steps():
    plain, brief = kimi(plain_steps=3).stages
    assert plain.until == 3 and "with_brevity" not in str(plain.reward) and "with_brevity" in str(brief.reward)
    assert len(kimi(plain_steps=0).stages) == 1 and len(kimi(length=False).stages) == 1


def test_the_gradient_is_that_of_the_mirror_descent_by_hand():
    # A = +-1/2, tau 0.1, d the log-ratio to the sampling policy: (-A + tau d) / S, d = 1/2 - 1/4 and 1
    group = [single_turn_group([(5, 6), (7,)], [1.0, 0.0])]
    got = token_gradient(kimi(length=False, guesses=0), group, [-0.5, -1.25, 0.0])
    assert got == pytest.approx([(-0.5 + 0.025) / 2] * 2 + [(0.5 + 0.1) / 2])
    assert kimi().stage.updates[0].reset and not kimi(reset=False).stage.updates[0].reset
    with pytest.raises(BadValue, match="kimi: tau must be above 0"):
        kimi(tau=0)


# ---- questions


def test_a_draw_is_in_proportion_to_the_weights():
    first = [draw([0, 1, 2], [1.0, 2.0, 1.0], 1, seed, 0)[0] for seed in range(2000)]
    assert first.count(1) / 2000 == pytest.approx(0.5, abs=0.04)
    assert draw([7, 8, 9], [0.0, 0.0, 1.0], 1, 3, 4) == [9]  # what never fails is drawn where nothing else is left
    assert len(draw([7, 8, 9], [0.0, 0.0, 1.0], 2, 3, 4)) == 2 and draw([7], [1.0], 5, 0, 0) == [7]


def test_the_set_goes_from_its_easiest_questions_to_all():
    # difficulties 0, 1, 2, 0, 1, 2: in order 0 and 3, then 1 and 4, then 2 and 5
    seen = [{r.help["number"] for s in range(40) for r in at(s, step)} for step in range(4)]
    assert [s <= allowed for s, allowed in zip(seen, ({0, 3}, {0, 1, 3, 4}, set(range(6)), set(range(6))), strict=True)]
    assert seen[0] == {0, 3} and seen[1] == {0, 1, 3, 4} and seen[2] == seen[3] == set(range(6))


def at(seed: int, step: int) -> list[RolloutRequest]:
    part = from_easy_to_failed(**SELECT)
    state = {"set": None, "left_out": 0, "rate": {}, "open": []}
    return asked(part, [], state, where=by_rank(seed), n=2, step=step, seed=seed)[0]


def by_rank(seed: int) -> Any:
    """The source of difficulties 0, 1, 2 in turn from wherever a run of this seed begins."""
    from selfteach.curriculum.select import first_task_index

    made, first = source(), first_task_index(seed)

    def train(i: int) -> Task:
        task = made.train(i - first)
        return task

    return replace(made, train=train)


def test_a_question_that_succeeds_is_left_alone_once_the_easy_steps_are_over():
    requests, state, _ = select(step=0, n=6, easy_steps=0)
    done = [answered(r, [1.0, 1.0] if r.help["number"] != 4 else [0.0, 1.0]) for r in requests]
    _, state, _ = select(state, [done], step=0, easy_steps=0)
    assert state["rate"] == {"4": 0.5, **{str(i): 1.0 for i in (0, 1, 2, 3, 5)}}
    for step in range(1, 9):
        (request,), _, told = select(state, step=step, n=1, easy_steps=0)
        assert request.help["number"] == 4 and told["success"] == 0.5 and told["ready"] == pytest.approx(5.5 / 6)
    alike = {select(state, step=step, n=1, easy_steps=0, prioritised=False)[0][0].help["number"] for step in range(60)}
    assert alike == set(range(6))


def test_what_is_guessed_without_a_thought_is_left_out():
    requests, state, _ = select(guesses=3)
    assert [(r.program, r.n) for r in requests] == [("guess", 3)] * 6
    tries = [["7", "1", "2"] if i in (1, 2) else ["5", "1", "2"] for i in range(6)]
    rounds = [[with_answers(r, t) for r, t in zip(requests, tries, strict=True)]]
    requests, state, told = select(state, rounds, guesses=3, step=2, n=6)
    assert sorted(r.help["number"] for r in requests) == [0, 3, 4, 5] and told["left_out"] == 2
    again, _, _ = select(state, (), guesses=3, step=3)
    assert all(r.program == "main" for r in again), "it is tried once"
    every = [[with_answers(r, ["7"]) for r in select(guesses=1)[0]]]
    with pytest.raises(BadValue, match="all 6 questions are guessed in 1 tries"):
        select(None, every, guesses=1)


def with_answers(request: RolloutRequest, answers: list[str]) -> RolloutGroup:
    episodes = [
        Episode(f"g/{i}", single_turn_group([(5,)], [None]).episodes[0].tree, [], a) for i, a in enumerate(answers)
    ]
    return RolloutGroup(request, episodes, {}, request.key or "g")


# ---- answers that are carried over


def test_an_answer_is_carried_over_until_it_is_done(letters):
    # 23 letters in parts of 12; the second part would end inside of the stop string, which is then sampled anew
    whole = "abcdefghijklmnopqrstu</answer>"
    drafts, trees, group = None, dict[str, Any](), None
    for step in range(3):
        context = scripted_context(
            carried_on(part=12),
            lambda text, key: whole[len(text) - 3 :],
            letters,
            sampling=Sampling(max_tokens=40),
            where=("train", step),
        )
        context.find = trees.__getitem__
        (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "say"), 1, help={"drafts": drafts})]))
        (episode,) = group.episodes
        assert episode.status == "done", episode.why
        trees[episode.id] = episode.tree
        (end,) = episode.trajectories
        assert (end.learn is None) == (step < 2)
        drafts = [[list(end.leaf), "" if end.learn is None else end.status]]
    assert group is not None and full_text(group.episodes[0], letters) == f"say{whole}"
    assert spans(group.episodes[0], letters, "carried") == "abcdefghijklmnopqrstu"
    (example,) = whole_groups(groups=[group])
    assert [s.learn for s in example.segments][-2:] == ["main", "main"]
    (example,) = whole_groups(mask=("carried",))(groups=[group])
    assert [s.learn for s in example.segments][-2:] == [None, "main"]
    with pytest.raises(BadValue, match="part must be at least 9"):
        asyncio.run(carried_on(part=8)(request=RolloutRequest(Task("t", "say")), rollout=None))


def test_an_answer_that_is_as_long_as_it_may_be_is_done(letters):
    context = scripted_context(carried_on(part=12), ["a" * 40], letters, sampling=Sampling(max_tokens=12))
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "say"), 1)]))
    (end,) = group.episodes[0].trajectories
    assert (end.learn, end.status) == ("main", "length")


def test_a_group_waits_for_its_last_answer_and_is_asked_for_again():
    requests, state, _ = select(step=5)
    first, second = (answered(r, [1.0, 0.0]) for r in requests)
    end = second.episodes[1].trajectories[0]
    second.episodes[1].trajectories[0] = replace(end, learn=None, status="length")
    assert [e.key for e in whole_groups(groups=[first, second])] == [first.key] * 2
    _, state, _ = select(state, [[first, second]], step=5)
    numbers = [r.help["number"] for r in requests]
    assert list(state["rate"]) == [str(numbers[0])]
    again, _, told = select(state, step=6)
    assert told["carried"] == 1 and again[0].help["number"] == numbers[1] and len(again) == 2
    (a, done), (b, not_done) = again[0].help["drafts"]
    assert (done, not_done) == ("stop", "") and b == list(end.leaf) and a != b
    assert again[1].help["drafts"] is None and again[1].help["number"] != numbers[1]


def test_a_guess_is_not_learned(letters):
    context = scripted_context(guess(), ["4</answer>"], letters)
    (group,) = asyncio.run(play(context, [RolloutRequest(Task("t", "say"), 1)]))
    (episode,) = group.episodes
    assert episode.answer == "4" and episode.trajectories[0].learn is None
    assert full_text(episode, letters) == "say<answer>4</answer>"
