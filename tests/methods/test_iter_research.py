"""IterResearch by hand: what a round sees, what it is worth, how many rounds are learned, and how much each weighs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from support.agents import ANN, played
from support.battery import Study, groups_of, of
from support.episodes import full_text

from selfteach.core import RolloutRequest, Task
from selfteach.core.scoring import score
from selfteach.methods.iter_research import question_mean, research_rounds, rounds_to_learn

CHAIN = Task("t", "question: what is the mayor of the home of Ann?\n", ("Bob",))
FOUND = {"home of Ann": "the home of Ann is Ulm.", "mayor of Ulm": "the mayor of Ulm is Bob."}
REPLIES = [
    "<think>a.</think><report> </report><search>home of Ann</search>",
    "<think>b.</think><report> the home of Ann is Ulm.</report><search>mayor of Ulm</search>",
    "<think>c.</think><report> the mayor of Ulm is Bob.</report><answer> Bob</answer>",
]


def episode(tags, replies, task=CHAIN, **args):
    stage = of("iter_research", **args).stage
    context, group = played(
        stage.programs["main"], replies, tags, lambda query: FOUND[query], RolloutRequest(task, key="t")
    )
    return stage, context, group


def test_a_round_sees_the_question_the_last_report_and_the_last_result(tags):
    _, _, group = episode(tags, REPLIES)
    texts = [full_text(group.episodes[0], tags, n) for n in range(3)]
    seen = [text.removesuffix(reply) for text, reply in zip(texts, REPLIES, strict=True)]
    assert seen[0] == CHAIN.prompt
    first = "<report> </report><search>home of Ann</search><information>the home of Ann is Ulm.</information>"
    assert seen[1] == CHAIN.prompt + first
    assert seen[2] == (  # of the first round nothing is left but what the second reported
        f"{CHAIN.prompt}<report> the home of Ann is Ulm.</report><search>mayor of Ulm</search>"
        "<information>the mayor of Ulm is Bob.</information>"
    )
    assert group.episodes[0].answer == "Bob"


def test_a_round_costs_the_same_however_late_it_is(tags):
    program = research_rounds(turns=40)
    again = "<think>a.</think><report> nothing yet.</report><search>home of Ann</search>"
    context, group = played(program, [again] * 40, tags, lambda query: FOUND[query], limits=limits(40))
    lengths = [len(context.path(t.leaf).ids) for t in group.episodes[0].trajectories]
    assert len(lengths) == 40 and len(set(lengths[2:])) == 1


def limits(turns):
    from selfteach.loop.step_context import EpisodeLimits

    return EpisodeLimits(turns=turns, tokens=100_000)


def test_the_outcome_is_discounted_by_the_rounds_that_were_still_to_come(tags):
    stage, context, group = episode(tags, REPLIES, gamma=0.5)
    found = asyncio.run(score(stage.reward[0], [group], context))["reward"]
    assert [s.value for s in found.values()] == [0.25, 0.5, 1.0]  # 1/2^2, 1/2, 1
    assert [s.parts["rounds"] for s in found.values()] == [3.0] * 3
    stage, context, group = episode(tags, REPLIES[:2] + ["<answer> x</answer>"], gamma=0.5)
    assert [s.value for s in asyncio.run(score(stage.reward[0], [group], context))["reward"].values()] == [0.0] * 3


@pytest.mark.parametrize(("hops", "spare"), [(2, 1.0), (None, None)])
def test_rounds_beyond_a_search_for_each_fact_and_the_answer_are_told_once_where_it_is_right(tags, hops, spare):
    task = replace(CHAIN, tags={"hops": hops} if hops else {})
    for reply, last in (("<answer> Bob</answer>", spare), ("<answer> x</answer>", None)):
        stage, context, group = episode(tags, [*REPLIES[:2], REPLIES[1], reply], task)
        found = asyncio.run(score(stage.reward[0], [group], context))["reward"]
        assert [s.parts.get("spare") for s in found.values()] == [None, None, None, last]


def test_as_many_rounds_are_learned_as_the_divisor_divides(tags):
    stage, context, group = episode(tags, REPLIES)
    group.scores.update(asyncio.run(score(stage.reward[0], [group], context)))
    kept = rounds_to_learn(groups=[group], divisor=2)
    assert len(kept) == 2 and len({e.name for e in kept}) == 2
    assert [e.name for e in kept] == [e.name for e in rounds_to_learn(groups=[group], divisor=2)]
    assert len(rounds_to_learn(groups=[group], divisor=8)) == 3  # fewer than it are all kept
    assert len({e.key for e in kept}) == 1  # and compared with each other, whichever round they are


def test_a_question_of_many_rounds_weighs_as_much_as_one_of_few():
    groups = [*groups_of(("g0",), size=2), *groups_of(("g1", "g2"))]  # of two rounds, and four
    study = Study(of("iter_research"), groups)
    (weights,) = study.weights
    assert np.bincount(study.batch.get("group", "seq")).tolist() == [2, 4, 4]
    assert weights == pytest.approx([1 / 6] * 2 + [1 / 12] * 8)  # not 1/10 each
    assert question_mean(length=np.array([5, 2]), group=np.array([3, 3])) == pytest.approx([1 / 10, 1 / 4])


def test_a_round_for_which_the_limits_leave_nothing_is_dropped(tags):
    program, ask = research_rounds(turns=8), RolloutRequest(CHAIN, key="t")
    context, group = played(program, REPLIES, tags, lambda query: FOUND[query], ask, limits=limits(2))
    (episode,) = group.episodes
    assert episode.answer is None and [t.status for t in episode.trajectories] == ["stop", "stop"]
    rewards = asyncio.run(score(of("iter_research").stage.reward[0], [group], context))["reward"]
    assert [s.parts["rounds"] for s in rewards.values()] == [2.0, 2.0]


@pytest.mark.parametrize("reply", ["no tags", "<report> x</report>"])
def test_a_round_without_a_query_or_an_answer_ends_it(tags, reply):
    _, _, group = episode(tags, [reply], ANN)
    assert group.episodes[0].answer is None and len(group.episodes[0].trajectories) == 1


def test_rounds_end_where_turns_do(tags):
    _, _, group = episode(tags, REPLIES, turns=2)
    assert group.episodes[0].answer is None and len(group.episodes[0].trajectories) == 2


def test_the_clip_bounds_are_those_that_are_given():
    def bounds(**args):
        (update,) = of("iter_research", **args).stage.updates
        return {name: update.terms[0].fn.args[name] for name in ("low", "high")}

    assert bounds() == {"low": 3e-4, "high": 4e-4}  # of GSPO's paper
    assert bounds(low=0.03, high=0.04) == {"low": 0.03, "high": 0.04}
